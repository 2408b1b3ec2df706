"""Where a model meets the picture is found for every kind of model, or asked for."""

import pytest
import torch
from torch import nn

import mjp
from mjp.core.errors import ConfigError
from mjp.jigsaw import PatchGrid
from mjp.models.surface import SurfaceNames, find_surface
from tests.models.kinds import HEIGHT, OTHERS, VITS, WIDTH, Kind

SIZE = (HEIGHT, WIDTH)
GRID = PatchGrid(4, 2)
SAME_SIZE = {name: kind for name, kind in VITS.items() if kind.image_size == SIZE}


@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("kind", SAME_SIZE.values(), ids=SAME_SIZE)
def test_a_vits_parts_are_found_and_its_rows_get_the_gradients_of_their_tokens(kind: Kind, ours):
    model = kind.build().double().eval()
    if ours:
        model = mjp.wrap(model, mjp.MJPConfig())
    found = find_surface(model, SIZE)
    assert (found.patch_embedding, found.classifier) == ("patch_embed.proj", "head")
    assert (found.grid, found.patch, found.width) == (GRID, (16, 16), 48)
    assert (found.layout, found.between) == ("chw", None)
    assert found.unknown == ("unknown_position" if ours else None)
    seen = {}

    def note(_, __, tokens):
        tokens.retain_grad()
        seen["tokens"] = tokens

    model.patch_embed.register_forward_hook(note)
    model(kind.images(1, torch.float64)).square().sum().backward()
    rows = model.get_parameter(found.positions).grad[0, found.first_row :]
    assert rows.abs().max() > 0
    torch.testing.assert_close(rows, seen["tokens"].grad[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["dynamic size", "dynamic distilled"])
def test_a_resampled_table_is_said_to_lie_between(name):
    kind = VITS[name]
    model = mjp.wrap(kind.build(), mjp.MJPConfig())
    found = find_surface(model, kind.image_size)
    assert found.grid == PatchGrid(3, 5)
    assert found.positions == "pos_embed"  # It is shared, and so it can be withheld.
    assert found.first_row == 1 + ("distilled" in name)
    assert found.between == "a resampling of the position table from 4x2 to 3x5"
    assert find_surface(model, SIZE).between is None


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (None, None),
        (mjp.MJPConfig(), None),
        (mjp.MJPConfig(absolute_positions="added"), "pos_embed"),
    ],
)
def test_a_swin_has_positions_where_they_are_added_and_norms_its_patches(config, positions):
    model = OTHERS["swin"].build()
    found = find_surface(model if config is None else mjp.wrap(model, config), SIZE)
    assert (found.patch_embedding, found.classifier) == ("patch_embed.proj", "head.fc")
    assert (found.grid, found.width) == (PatchGrid(16, 8), 24)
    assert (found.positions, found.first_row) == (positions, 0)
    assert found.between == "a norm after the patch embedding"


def test_a_resnet_has_no_patches_and_the_error_says_what_to_name():
    model = OTHERS["resnet"].build()
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


def test_a_patch_that_is_not_square_is_told_by_the_model():
    found = find_surface(Theirs((8, 12), told=True), (32, 72), SurfaceNames(**NAMES))
    assert (found.patch, found.grid) == ((8, 12), PatchGrid(4, 6))
    with pytest.raises(ConfigError, match="takes 288 values, which is no square patch"):
        find_surface(Theirs((8, 12)), (32, 72), SurfaceNames(**NAMES))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"patch_embedding": "tokeniser"}, "its first are tokenizer, mixer, answer"),
        ({"positions": "place"}, "'place' is no table of the positions"),
        ({"positions": "tokenizer.weight"}, "is no table of the positions of 4x6 patches"),
        ({"classifier": "places"}, "'places' is no linear layer"),
    ],
)
def test_wrong_names_are_said(names, message):
    with pytest.raises(ConfigError, match=message):
        find_surface(Theirs(), (32, 48), SurfaceNames(**{**NAMES, **names}))
