"""Where a model meets the picture is found for every kind of model, or asked for."""

import pytest
import torch
import tyro
from torch import nn

import mjp
from mjp.commands.audit_options import AuditOptions
from mjp.core.configuration import from_mapping
from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.surface import SurfaceNames, find_surface
from tests.models.kinds import HEIGHT, KINDS, OTHERS, VITS, WIDTH, Kind

SIZE = (HEIGHT, WIDTH)


GRID = PatchGrid(4, 2)


SAME_SIZE = {name: kind for name, kind in VITS.items() if kind.image_size == SIZE}


FIRST_ROWS = {
    "plain": 1,
    "distilled": 2,
    "deit3": 0,
    "registers": 4,
    "registers without positions": 0,
    "average pooling": 0,
    "attention pooling": 1,
    "norm before the blocks": 1,
}
"""Rows of the position table before those of the patches."""


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", SAME_SIZE)
def test_a_vit_s_parts_are_found(name, ours):
    model = VITS[name].build()
    if ours:
        model = mjp.wrap(model, mjp.MJPConfig())
    found = find_surface(model, SIZE)
    assert found.patch_embedding == "patch_embed.proj"
    assert found.positions == "pos_embed"
    assert found.classifier == "head"
    assert (found.grid, found.patch, found.width) == (GRID, (16, 16), 48)
    assert found.patch_values == 3 * 16 * 16
    assert found.layout == "chw"
    assert found.between is None
    assert found.unknown == ("unknown_position" if ours else None)
    assert found.first_row == FIRST_ROWS[name]


@pytest.mark.parametrize("kind", SAME_SIZE.values(), ids=SAME_SIZE)
def test_the_rows_of_the_patches_get_the_gradients_of_their_tokens(kind: Kind):
    model = kind.build().double().eval()
    found = find_surface(model, SIZE)
    seen = {}

    def note(_, __, tokens):
        tokens.retain_grad()
        seen["tokens"] = tokens

    model.patch_embed.register_forward_hook(note)
    model(kind.images(1, torch.float64)).square().sum().backward()
    rows = model.get_parameter(found.positions).grad[0, found.first_row :]
    assert rows.abs().max() > 0
    torch.testing.assert_close(rows, seen["tokens"].grad[0], rtol=0, atol=0)


def test_positions_that_are_not_there_are_not_found():
    plain = KINDS["plain"].build()
    for config in (mjp.MJPConfig(positions="none", localization=None), mjp.VARIANTS["A"]):
        found = find_surface(mjp.wrap(plain, config), SIZE)
        assert found.positions == (None if config.positions == "none" else "pos_embed")
        assert found.unknown is None


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("name", ["dynamic size", "dynamic distilled"])
def test_a_resampled_table_is_said_to_lie_between(name, ours):
    kind = VITS[name]
    model = kind.build()
    if ours:
        model = mjp.wrap(model, mjp.MJPConfig())
    for size, grid in ((kind.image_size, PatchGrid(3, 5)), ((32, 48), PatchGrid(2, 3))):
        found = find_surface(model, size)
        assert found.grid == grid
        assert found.positions == "pos_embed"  # It is shared, and so it can be withheld.
        assert found.first_row == 1 + ("distilled" in name)
        assert found.between == f"a resampling of the position table from 4x2 to {grid}"
    assert find_surface(model, SIZE).between is None


def test_a_norm_of_patches_lies_between():
    model = KINDS["plain"].build()
    model.patch_embed.norm = nn.LayerNorm(48)
    assert find_surface(model, SIZE).between == "a norm after the patch embedding"


def test_swin_has_a_patch_embedding_but_no_table_of_positions():
    kind = OTHERS["swin"]
    for model in (kind.build(), mjp.wrap(kind.build(), mjp.MJPConfig())):
        found = find_surface(model, SIZE)
        assert found.patch_embedding == "patch_embed.proj"
        assert (found.grid, found.width) == (PatchGrid(16, 8), 24)
        assert found.positions is None
        assert found.unknown is None
        assert found.classifier == "head.fc"
        # timm's Swin norms its patches.
        assert found.between == "a norm after the patch embedding"


def test_a_table_added_to_swin_is_found():
    config = mjp.MJPConfig(absolute_positions="added")
    found = find_surface(mjp.wrap(OTHERS["swin"].build(), config), SIZE)
    assert (found.positions, found.first_row) == ("pos_embed", 0)


@pytest.mark.parametrize("ours", [False, True])
def test_a_resnet_has_no_patches_and_the_error_says_what_to_name(ours):
    model = OTHERS["resnet"].build()
    if ours:
        model = mjp.wrap(model, mjp.MJPConfig(jigsaw_patch=16))
    with pytest.raises(ConfigError, match="name a layer with --patch-embedding"):
        find_surface(model, SIZE)
    with pytest.raises(ConfigError, match="does not cut images of three channels into patches"):
        find_surface(model, SIZE, SurfaceNames(patch_embedding="conv1"))


class Theirs(nn.Module):
    """Somebody's own model: a linear patch embedding, places for patches after two tokens."""

    def __init__(self, patch: tuple[int, int] = (8, 8), told: bool = False) -> None:
        super().__init__()
        self.tokenizer = nn.Linear(3 * patch[0] * patch[1], 20)
        self.places = nn.Parameter(torch.zeros(2 + 24, 20))
        self.mixer = nn.Linear(20, 20)
        self.answer = nn.Linear(20, 5)
        if told:
            self.patch_size = patch


NAMES = {"patch_embedding": "tokenizer", "positions": "places", "classifier": "answer"}


def test_parts_are_taken_by_the_names_that_are_given():
    found = find_surface(Theirs(), (32, 48), SurfaceNames(**NAMES, layout="hwc"))
    assert (found.patch_embedding, found.positions, found.classifier) == tuple(NAMES.values())
    assert (found.first_row, found.grid, found.patch) == (2, PatchGrid(4, 6), (8, 8))
    assert (found.width, found.layout, found.between) == (20, "hwc", None)
    # What is not named: no parameter is called a position, the last linear layer is the classifier.
    found = find_surface(Theirs(), (32, 48), SurfaceNames("tokenizer"))
    assert (found.positions, found.first_row, found.classifier) == (None, 0, "answer")
    found = find_surface(Theirs(), (32, 48), SurfaceNames("tokenizer", "none", "none"))
    assert (found.positions, found.classifier) == (None, None)


@pytest.mark.parametrize("name", ["positions", "classifier"])
def test_none_means_the_same_in_a_file_and_on_the_command_line(name):
    in_a_file = from_mapping(AuditOptions, {name: "none"}, where="audit.toml")
    assert getattr(in_a_file, name) == "none"
    assert tyro.cli(AuditOptions, args=[f"--{name}", "none"]) == in_a_file
    names = SurfaceNames("tokenizer", **{name: "none"})
    assert getattr(find_surface(Theirs(), (32, 48), names), name) is None
    config = {"positions": "none", "localization": "none"}
    assert from_mapping(mjp.MJPConfig, config, where="recipe.toml").positions == "none"


def test_a_patch_that_is_not_square_is_told_by_the_model():
    found = find_surface(Theirs((8, 12), told=True), (32, 72), SurfaceNames(**NAMES))
    assert (found.patch, found.grid) == ((8, 12), PatchGrid(4, 6))
    with pytest.raises(ConfigError, match="takes 288 values, which is no square patch"):
        find_surface(Theirs((8, 12)), (32, 72), SurfaceNames(**NAMES))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"patch_embedding": "tokeniser"}, "its first are tokenizer, mixer, answer"),
        ({"patch_embedding": "places"}, "is no convolution or linear layer"),
        ({"positions": "place"}, "has no parameter 'place'"),
        ({"positions": "tokenizer.weight"}, "is no table of the positions of 4x6 patches"),
        ({"positions": "mixer.weight"}, "is no table of the positions of 4x6 patches"),
        ({"classifier": "places"}, "'places' is no linear layer"),
    ],
)
def test_wrong_names_are_said(names, message):
    with pytest.raises(ConfigError, match=message):
        find_surface(Theirs(), (32, 48), SurfaceNames(**{**NAMES, **names}))


def test_a_size_that_cannot_be_cut_into_patches_is_refused():
    with pytest.raises(ConfigError, match="cannot be cut into 16x16 patches"):
        find_surface(KINDS["plain"].build(), (60, 32))


@pytest.mark.unchecked  # Wrong input must meet our own errors.
def test_a_first_block_that_is_neither_is_refused():
    with pytest.raises(ConfigError, match="first_block"):
        mjp.MJPConfig(first_block="naked")
