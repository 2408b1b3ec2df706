"""The store: bounded, forgetful, and with names that nobody guesses."""

from mjp.web.store import Store, new_id


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_names_are_long_and_never_the_same():
    names = {new_id() for _ in range(1000)}
    assert len(names) == 1000
    assert {len(name) for name in names} == {32}


def test_what_nobody_asks_for_is_forgotten():
    clock = Clock()
    store: Store[str] = Store(10, 60.0, clock=clock)
    store.add("a", "first")
    store.add("b", "second")
    clock.now = 50
    assert store.get("a") == "first"
    clock.now = 100
    assert store.get("b") is None
    assert store.get("a") == "first"
    clock.now = 161
    store.forget_idle()
    assert len(store) == 0


def test_a_full_store_forgets_what_was_longest_not_asked_for():
    store: Store[int] = Store(2, 60.0, keep=lambda thing: thing == 0)
    for number, name in enumerate("abcd"):
        store.add(name, number)
        if name == "b":
            assert store.get("a") == 0
    assert [store.get(name) for name in "abcd"] == [0, None, None, 3]
    assert store.remove("d") == 3
    assert store.remove("d") is None
