import torch

import mjp
from tests.models.kinds import VITS


def drawn(config, seed=0, tries=400):
    model = mjp.wrap(VITS["plain"].build(), config)
    generator = torch.Generator().manual_seed(seed)
    images = VITS["plain"].images()
    return [model.draw_plan(images, generator) for _ in range(tries)]


def test_a_batch_gets_a_jigsaw_with_the_configured_probability():
    assert all(drawn(mjp.MJPConfig(ratio=0.5, probability=1.0), tries=20))
    assert not any(drawn(mjp.MJPConfig(ratio=0.5, probability=0.0), tries=20))
    share = sum(plan is not None for plan in drawn(mjp.MJPConfig(ratio=0.5, probability=0.25)))
    assert 70 < share < 130


def test_the_same_generator_state_draws_the_same_plans():
    config = mjp.MJPConfig(ratio=0.5)
    for one, other in zip(drawn(config, tries=30), drawn(config, tries=30), strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.source, other.source)


def test_drawing_leaves_the_global_generator_alone_and_so_does_the_model():
    model = mjp.wrap(VITS["plain"].build(), mjp.MJPConfig(ratio=0.5, probability=1.0))
    images = VITS["plain"].images()
    state = torch.get_rng_state()
    plan = model.draw_plan(images, torch.Generator())
    model(images, plan=plan)
    model.localization_loss(plan)
    assert torch.equal(torch.get_rng_state(), state)


def test_whether_a_batch_is_shuffled_does_not_depend_on_the_ratio():
    some = [plan is None for plan in drawn(mjp.MJPConfig(ratio=0.3), tries=30)]
    more = [plan is None for plan in drawn(mjp.MJPConfig(ratio=0.9), tries=30)]
    assert some == more
