"""What every attack and every defence has to hold: a test class inherits it and names its own."""

import copy
from dataclasses import fields

import pytest
import torch

import mjp
from mjp.core.errors import ConfigError
from mjp.privacy.attacks import ATTACKS
from mjp.privacy.defence_parts import PARTS
from mjp.privacy.defences import parse_defence
from mjp.privacy.sharing import share
from mjp.privacy.update import Effort, SharedUpdate
from tests.privacy.clients import HEIGHT, WIDTH, pictures, plan, public
from tests.privacy.reaching import holds, reachable

FEW = Effort(steps=2, restarts=1)


class AttackContract:
    """Give `name` as a fixture or attribute; `needs_nothing` where any gradient will do."""

    name: str
    needs_nothing = False

    def test_it_is_in_the_table_with_a_line_about_it(self, name):
        entry = ATTACKS[name]
        assert entry.kind in ("closed", "search")
        assert len(entry.about) > 10

    def test_result_keeps_to_the_contract(self, name):
        model = public(first_block="bare")
        update = share(model, model.normalized(pictures("coffee")), torch.tensor([2]))
        before = copy.deepcopy(model.model.state_dict())
        told: list[float] = []
        effort = Effort(steps=2, restarts=1, tell=told.append)
        result = mjp.attack(name, model, update, effort=effort)
        assert result.attack == name
        assert result.applies
        assert result.images.shape == (1, 3, HEIGHT, WIDTH)
        assert result.images.dtype == torch.float32
        assert 0 <= result.images.min() <= result.images.max() <= 1
        assert not result.images.requires_grad
        for fact in ("patches", "width", "rank", "condition", "positions_shared", "first_block"):
            assert fact in result.facts
        assert all(torch.equal(one, before[k]) for k, one in model.model.state_dict().items())
        assert sum(told) == pytest.approx(1, abs=1e-6)

    def test_the_same_seed_gives_the_same_result(self, name):
        model = public(first_block="bare")
        update = share(model, model.normalized(pictures("coffee")), torch.tensor([2]))
        one, two = (mjp.attack(name, model, update, effort=FEW).images for _ in range(2))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6)

    def test_it_says_why_where_it_does_not_apply(self, name):
        model = public()
        update = share(model, model.normalized(pictures("coffee")), torch.tensor([2]))
        kept = {n: g for n, g in update.gradients.items() if n.startswith("blocks.1.norm")}
        result = mjp.attack(name, model, SharedUpdate(kept), effort=FEW)
        assert result.applies == self.needs_nothing
        if not self.needs_nothing:
            assert result.images is None
            assert len(result.reason) > 10

    def test_an_update_of_another_model_is_an_error(self, name):
        update = SharedUpdate({"nobody.weight": torch.zeros(3)})
        with pytest.raises(ConfigError, match="no parameter"):
            mjp.attack(name, public(), update, effort=FEW)

    def test_it_never_sees_picture_mask_permutation_or_label(self, name):
        model = public()
        images, labels, jigsaw = model.normalized(pictures("astronaut")), 5, plan(model, 0.2)
        update = share(model, images, torch.tensor([labels]), jigsaw)
        given = reachable(model, update, ATTACKS[name].run)
        assert len(given) > 20
        for secret in (images, jigsaw.masked, jigsaw.source):
            assert not holds(given, secret)
        assert not holds([one for one in given if one.dtype == torch.int64], torch.tensor([labels]))


class DefenceContract:
    """Give `text` as a fixture or attribute: the defence of one part, as a person writes it."""

    text: str

    def test_it_names_itself_and_parses_back(self, text):
        defence = parse_defence(text)
        assert str(defence) == text
        assert parse_defence(str(defence)) == defence
        (part,) = defence.parts
        assert PARTS[part.name] is type(part)
        assert part.usage().startswith(part.name)
        assert part.label
        assert defence.title
        assert defence.about.startswith("The client ")
        assert defence.about.endswith(".")

    def test_its_numbers_say_their_bounds(self, text):
        (part,) = parse_defence(text).parts
        for one in fields(part):
            told = one.metadata
            assert told["title"]
            assert told["least"] <= told["example"] <= told["most"]
            assert told["least"] <= told["control"][0] < told["control"][1] <= told["most"]

    def test_its_public_model_is_a_copy_or_the_same(self, text):
        model = public()
        before = copy.deepcopy(model.model.state_dict())
        defence = parse_defence(text)
        defended = defence.public(model)
        assert defence.public(defended) is defended
        assert all(torch.equal(one, before[k]) for k, one in model.model.state_dict().items())

    def test_it_says_whether_it_changes_what_the_model_answers(self, text):
        defence, model = parse_defence(text), public()
        defended = defence.public(model)
        inputs = model.normalized(pictures("cat", "coffee")).repeat(4, 1, 1, 1)
        generator = torch.Generator().manual_seed(0)
        drawn = defence.draw_plan(defended, 1, generator, clients=8)
        answers = defended.logits(*defence.arrange(inputs, drawn))
        changed = not torch.allclose(answers, model.logits(inputs), atol=1e-6)
        assert changed == bool(defence.feeding.parts)

    def test_the_same_seed_sends_the_same(self, text):
        defence = parse_defence(text)
        defended = defence.public(public())
        images = defended.normalized(pictures("cat", "coffee", "rocket", "retina"))
        images = images[: defence.images_per_update]
        labels = torch.arange(len(images))
        sent = []
        for _ in range(2):
            generator = torch.Generator().manual_seed(0)
            drawn = defence.draw_plan(defended, len(images), generator)
            sent.append(defence.share(defended, images, labels, drawn, generator))
        one, two = sent
        assert one.defence == two.defence == text
        assert one.gradients.keys() == two.gradients.keys()
        for name, gradient in one.gradients.items():
            assert gradient.isfinite().all()
            torch.testing.assert_close(gradient, two.gradients[name])
