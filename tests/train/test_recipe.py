"""Recipes: strict about what they hold, complete when they are written back."""

import math
import tomllib
from dataclasses import fields, replace

import pytest

from mjp.catalog import read_recipe, recipe_from, recipes
from mjp.core.configuration import flatten, from_mapping, to_toml
from mjp.core.errors import ConfigError
from mjp.models.config import VARIANTS
from mjp.tasks.classify.config import ClassifyConfig

NAMES = [name for name, path in recipes().items() if "classify" in path.parts]


def test_the_recipes_that_are_promised_are_there():
    assert set(NAMES) == {
        "digits",
        "imagenet-deit-s",
        "imagenet-deit-ti",
        "imagenet-resnet50",
        "imagenet-swin-t",
        "mini-imagenet-16x16",
        "mini-imagenet-64",
        "mini-imagenet-64-resnet50",
        "mini-imagenet-64-swin",
        "mini-imagenet-finetune",
        "positions",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_being_written_and_read(name):
    recipe = read_recipe(name)
    assert recipe_from(tomllib.loads(to_toml(recipe)), "it") == recipe
    plain = recipe.with_variant("A")
    assert recipe_from(tomllib.loads(to_toml(plain)), "it") == plain


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_begins_with_its_command(name):
    head = recipes()[name].read_text().split("\n[")[0]
    assert f"mjp train {name}" in head
    assert all(line.startswith("#") or not line for line in head.splitlines())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("imagenet")])
def test_the_imagenet_recipes_have_the_papers_settings(name):
    recipe = read_recipe(name)
    run, optimizer, augment = recipe.run, recipe.optimizer, recipe.augment
    assert (run.epochs, run.warmup_epochs, run.batch) == (300, 20, 1024)
    assert optimizer.learning_rate * 1024 / optimizer.reference_batch == 0.001
    assert (optimizer.warmup_rate, optimizer.final_rate) == (5e-7, 5e-6)
    assert (optimizer.weight_decay, optimizer.clip) == (0.05, 5.0)
    assert (augment.smoothing, augment.mixup, augment.cutmix, augment.erasing) == (
        0.1,
        0.8,
        1,
        0.25,
    )
    assert (augment.rand_augment, augment.rand_augment_std, augment.color_jitter) == (9, 0.5, 0.4)
    assert (recipe.localization.start, recipe.localization.final_ratio) == (0.01, 0.5)
    assert recipe.mjp.probability == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[modle]\nname = 'x'", "modle is unknown; did you mean model"),
        ("[run]\nepoch = 3", "run.epoch is unknown; did you mean epochs"),
        ("[run]\nzzz = 3", "run.zzz is unknown; there is epochs"),
        ("[run]\nepochs = 'many'", "run.epochs must be a whole number, got 'many'"),
        ("[run]\nepochs = 2.5", "run.epochs must be a whole number, got 2.5"),
        ("[run]\nepochs = 0", "run.epochs must be a whole number of at least 1"),
        ("[run]\nepochs = 5\nwarmup_epochs = 5", "must be fewer than run.epochs"),
        ("[run]\ncompile = 'yes'", "run.compile must be one of off, on, graphs, got 'yes'"),
        ("[data]\nskip_corrupt = 1", "data.skip_corrupt must be true or false, got 1"),
        ("[augment]\ncrop_scale = [0.5]", "augment.crop_scale must be a list of"),
        ("[augment]\ncrop_scale = [0.9, 0.5]", "two numbers above 0, the smaller first"),
        ("[augment]\nflip = 2", "augment.flip must be a number between 0 and 1"),
        ("[mjp]\nratio = nan", "ratio must be a number between 0 and 1, got nan"),
        ("[optimizer]\nlearning_rate = inf", "must be a number of at least 0, got inf"),
        ("[optimizer]\naverage = 1", "would never change"),
        ("[model]\narguments = 3", "model.arguments must be a table, got 3"),
        ("[model]\narguments = { img_size = 3 }", "which has another place"),
        ("model = 3", "model must be a table, got 3"),
        ("[run]\naccumulation = 2\ncompile = 'graphs'", "goes with run.accumulation 1"),
    ],
)
def test_a_mistake_in_a_recipe_is_named(text, words):
    with pytest.raises(ConfigError, match=words) as raised:
        recipe_from(tomllib.loads(text), "mine.toml")
    assert str(raised.value).startswith("mine.toml: ")


def test_none_is_written_where_there_is_a_default():
    recipe = recipe_from({"mjp": {"localization": "none"}}, "it")
    assert recipe.mjp.localization is None
    assert 'localization = "none"' in to_toml(recipe)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml cannot be read: No such file"):
        read_recipe("nowhere.toml")
    (tmp_path / "bad.toml").write_text("epochs = = 3")
    with pytest.raises(ConfigError, match=r"bad.toml is no TOML file: .*line 1"):
        read_recipe(str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match=r"did you mean digits\?"):
        read_recipe("digit")


def test_a_recipe_of_ones_own_starts_from_the_papers_defaults(tmp_path):
    (tmp_path / "mine.toml").write_text("[run]\nepochs = 50\n")
    recipe = read_recipe(str(tmp_path / "mine.toml"))
    assert recipe == replace(ClassifyConfig(), run=replace(ClassifyConfig().run, epochs=50))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_keeps_the_recipes_ratio_where_it_shuffles_a_part(variant):
    recipe = read_recipe("mini-imagenet-64").with_variant(variant)
    expected = VARIANTS[variant]
    assert recipe.mjp.positions == expected.positions
    assert recipe.mjp.localization == expected.localization
    assert recipe.mjp.pixels == expected.pixels
    assert recipe.mjp.ratio == (0.27 if 0 < expected.ratio < 1 else expected.ratio)


def test_flattening_names_every_value():
    flat = flatten(ClassifyConfig())
    assert flat["run.epochs"] == 300
    sections = [field.name for field in fields(ClassifyConfig)]
    assert all(name.split(".")[0] in sections for name in flat)
    assert not any(isinstance(value, float) and math.isnan(value) for value in flat.values())
    with pytest.raises(ConfigError, match="there is no variant"):
        ClassifyConfig().with_variant("Z")
    assert from_mapping(ClassifyConfig, {}, where="it") == ClassifyConfig()
