import json

from mjp.core.records import Record, append_records
from mjp.core.seeds import generator_for


def test_records_are_appended_as_json_lines_and_lack_nothing_json_has():
    record = Record("kind", {"seed": 0}, {"value": 0.5, "missing": float("nan"), "name": "x"})
    assert json.loads(record.to_json()) == {
        "kind": "kind",
        "conditions": {"seed": 0},
        "values": {"value": 0.5, "missing": None, "name": "x"},
    }


def test_appending_keeps_what_is_there(tmp_path):
    path = tmp_path / "new" / "records.jsonl"
    record = Record("kind", {}, {"value": 1})
    append_records(path, [record])
    append_records(path, [record, record])
    assert len(path.read_text().splitlines()) == 3


def test_generators_differ_by_purpose_rank_step_and_seed_and_repeat_otherwise():
    def seed_of(*arguments, **options):
        return generator_for(*arguments, **options).initial_seed()

    first = seed_of(0, "jigsaw")
    assert first == seed_of(0, "jigsaw", rank=0, step=0)
    others = [
        seed_of(1, "jigsaw"),
        seed_of(0, "mixup"),
        seed_of(0, "jigsaw", rank=1),
        seed_of(0, "jigsaw", step=1),
        seed_of(0, "jigsaw", rank=1, step=1),
    ]
    assert len({first, *others}) == 6
