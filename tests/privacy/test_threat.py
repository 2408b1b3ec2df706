"""The threat model: what an attacker can reach, and what every attack keeps to."""

import pytest
import torch
from torch import nn

import mjp
from mjp.core.errors import ConfigError
from mjp.privacy.attacks import ATTACKS, attack_each
from mjp.privacy.attacks.matching import Matching
from mjp.privacy.attacks.search import SEARCHES
from mjp.privacy.reading import Attack, Reading
from mjp.privacy.sharing import share, share_each
from mjp.privacy.update import SharedUpdate
from tests.privacy.clients import CLASSES, pictures, plan, public
from tests.privacy.contracts import AttackContract
from tests.privacy.reaching import holds, reachable


def planted(model, **how):
    images = model.normalized(pictures("astronaut"))
    labels = torch.tensor([5])
    jigsaw = plan(model, 0.2)
    return images, labels, jigsaw, share(model, images, labels, jigsaw, **how)


def test_the_walk_finds_a_secret_in_an_autograd_graph():
    # The trap that the types close: a gradient with a history leads to the image.
    model = public()
    images = model.normalized(pictures("astronaut"))
    loss = model.logits(images).square().sum()
    weight = model.model.patch_embed.proj.weight
    (gradient,) = torch.autograd.grad(loss, [weight], create_graph=True)
    assert holds(reachable([gradient]), images)
    assert not holds(reachable(SharedUpdate({"patch_embed.proj.weight": gradient})), images)


def test_an_attack_gets_the_model_the_updates_and_its_effort_only(monkeypatch):
    model = public()
    images, _, jigsaw, update = planted(model)
    seen = []

    class Spy(Attack):
        def missing(self, *arguments):
            seen.append(reachable(*arguments))
            return "it only looks"

    monkeypatch.setattr("mjp.privacy.attacks.ATTACKS", {"spy": Spy()})
    # Without the gradient of the unknown embedding there is no mask to read off.
    kept = {name: one for name, one in update.gradients.items() if name != "unknown_position"}
    attack_each("spy", model, [(SharedUpdate(kept),)])
    assert not holds(seen[0], images)
    assert not holds(seen[0], jigsaw.masked)


def test_many_clients_together_send_what_each_sends_alone():
    model = public()
    images = model.normalized(pictures("astronaut", "coffee", "cat"))
    labels, jigsaw = torch.tensor([1, 2, 3]), plan(model, 0.2, 3)
    together = list(share_each(model, images, labels, jigsaw, at_a_time=2))
    for number, update in enumerate(together):
        part = slice(number, number + 1)
        alone = share(model, images[part], labels[part], jigsaw[part])
        for name, gradient in alone.gradients.items():
            torch.testing.assert_close(update.gradients[name], gradient, rtol=1e-3, atol=1e-6)
        zero = (update.gradients["pos_embed"][0, -48:] == 0).all(dim=1)
        assert zero.equal(jigsaw.masked[number])


def test_sharing_is_the_gradient_of_the_mean_loss_and_leaves_the_model_alone():
    model = public()
    images = model.normalized(pictures("astronaut", "coffee"))
    labels = torch.tensor([1, 2])
    before = {name: one.clone() for name, one in model.model.state_dict().items()}
    update = share(model, images, labels, localization_weight=0.5)
    assert all(one.grad is None for one in model.model.parameters())
    loss = nn.functional.cross_entropy(model.model(images), labels)
    (loss + 0.5 * model.model.localization_loss(None)).backward()
    for name, one in model.model.named_parameters():
        torch.testing.assert_close(update.gradients[name], one.grad)
        assert torch.equal(one, before[name])


def test_an_update_comes_back_from_its_file(tmp_path):
    update = planted(public(), localization_weight=0.01)[3]
    update.save(tmp_path / "update.safetensors")
    again = SharedUpdate.load(tmp_path / "update.safetensors")
    assert again.localization_weight == 0.01
    assert set(again.gradients) == set(update.gradients)
    assert all(torch.equal(again.gradients[n], g) for n, g in update.gradients.items())


@pytest.mark.unchecked
def test_what_cannot_be_shared_is_refused():
    model = public()
    images = model.normalized(pictures("astronaut"))
    with pytest.raises(ConfigError, match="as many whole numbers as labels"):
        share(model, images, torch.tensor([1, 2]))
    with pytest.raises(ConfigError, match="the model takes"):
        share(model, images[:, :, :40], torch.tensor([1]))
    with pytest.raises(ConfigError, match="need a learning_rate"):
        share(model, images, torch.tensor([1]), local_steps=2)
    with pytest.raises(ConfigError, match="must be a tensor of numbers"):
        SharedUpdate({"head.weight": torch.tensor([1])})


class TestEveryAttack(AttackContract):
    @pytest.fixture(params=sorted(ATTACKS))
    def name(self, request):
        # DLG needs no tensor in particular, not even the classifier's.
        self.needs_nothing = request.param == "dlg"
        return request.param


def test_an_unknown_attack_is_an_error_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean patch_solve"):
        mjp.attack("patch_solv", public(), SharedUpdate({}))
    with pytest.raises(ConfigError, match="at least one SharedUpdate"):
        mjp.attack("patch_solve", public(), [])


def test_the_label_is_read_off_the_classifier():
    model = public()
    for label in range(CLASSES):
        images = model.normalized(pictures("coffee"))
        assert Reading(model, share(model, images, torch.tensor([label]))).labels.tolist() == [
            label
        ]
    images = model.normalized(pictures("coffee", "cat", "rocket"))
    update = share(model, images, torch.tensor([6, 1, 1]))
    assert Reading(model, update).labels.tolist() == [1, 1, 6]


def test_client_and_attacker_minimise_the_loss_that_the_task_gives():
    def regression(model, batch, plan):
        """A task with targets of its own: logits near some numbers."""
        apart = model(batch["images"]) - batch.get("wanted", torch.ones(1))
        return {"loss": apart.square().mean(), "apart": apart.detach().abs().mean()}

    model = mjp.PublicModel.of(public().model, loss=regression)
    images = model.normalized(pictures("coffee", "cat"))
    targets = torch.rand(2, CLASSES, generator=torch.Generator().manual_seed(0))
    update = share(model, images, {"wanted": targets})
    expected = (model.model(images) - targets).square().mean()
    (gradient,) = torch.autograd.grad(expected, [model.model.patch_embed.proj.weight])
    torch.testing.assert_close(update.gradients["patch_embed.proj.weight"], gradient)
    # What the attacker computes of the right picture is what was shared.
    alone = share(model, images[:1], None)
    matching = Matching(SEARCHES["dlg"], model, [Reading(model, alone)], restarts=1)
    rows = matching.start(0, "test")
    rows[:, : images[:1].numel()] = images[:1].flatten()
    assert float(matching.mismatch(rows)[0]) < 1e-9
    each = list(share_each(model, images, {"wanted": targets}))
    torch.testing.assert_close(
        sum(one.gradients["head.bias"] for one in each) / 2, update.gradients["head.bias"]
    )
    with pytest.raises(ConfigError, match="2 images need as many wanted, got 3"):
        share(model, images, {"wanted": torch.zeros(3, CLASSES)})
    with pytest.raises(ConfigError, match="as many whole numbers as labels, got None"):
        share(public(), images, None)


def test_what_a_training_task_sends_is_attacked_with_its_own_loss():
    from mjp.tasks.classify.task import ClassifyTask

    task = ClassifyTask.__new__(ClassifyTask)  # Its loss needs no data.
    model = mjp.PublicModel.of(public().model, loss=task.loss)
    images, jigsaw = model.normalized(pictures("coffee", "cat")), plan(model, 0.2, 2)
    mixed = torch.tensor([[0, 0.7, 0.3, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0]])
    batch = {"targets": mixed, "localization_weight": torch.tensor(0.03)}
    update = share(model, images, batch, jigsaw, localization_weight=0.03)
    loss = task.loss(model.model, {"images": images, **batch}, jigsaw)["loss"]
    (gradient,) = torch.autograd.grad(loss, [model.model.pos_embed])
    torch.testing.assert_close(update.gradients["pos_embed"], gradient)
    alone = share(model, images[:1], torch.tensor([2]), jigsaw[:1], localization_weight=0.03)
    found = mjp.attack("adaptive_solve", model, alone)
    assert found.masked.equal(jigsaw.masked[0])
    matching = Matching(SEARCHES["idlg"], model, [Reading(model, alone)], restarts=1)
    assert float(matching.mismatch(images[:1].flatten()[None])[0]) < 1e-9
