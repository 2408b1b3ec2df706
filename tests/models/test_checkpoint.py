"""Models come back from their folders as they were, and weights from wherever they are."""

import argparse
import subprocess
import sys
import types

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import VisionTransformer
from timm.utils import CheckpointSaver, ModelEmaV3

import mjp
from tests.models.kinds import CLASSES, OTHERS, TINY, VITS


def tiny(config=None, **more):
    return mjp.create_model(
        "vit_tiny_patch16_224", config, num_classes=CLASSES, **{**TINY, **more}
    ).eval()


def test_timm_reads_the_same_folder(tmp_path):
    model = tiny(mjp.VARIANTS["I"])
    mjp.save(model, tmp_path)
    again = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    images = VITS["plain"].images()
    assert torch.equal(again(images), model(images))
    assert torch.equal(again.unknown_position, model.unknown_position)
    assert again.mjp_config == mjp.VARIANTS["I"]
    with pytest.raises(mjp.ConfigError, match="has a configuration of its own"):
        mjp.create_model(f"local-dir:{tmp_path}", mjp.VARIANTS["J"], pretrained=True)


def timms(name="vit_tiny_patch16_224", **more):
    return timm.create_model(name, **{**(TINY if "vit" in name else {}), **more})


def with_buffer():
    model = tiny()
    model.register_buffer("seen", torch.zeros(1))
    return model


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: mjp.wrap(VisionTransformer(depth=1)), mjp.CheckpointError, "not made by name"),
        (
            lambda: mjp.wrap(timms(act_layer="relu")),
            mjp.CheckpointError,
            "blocks.0.mlp.act is ReLU, not GELU",
        ),
        (with_buffer, mjp.CheckpointError, "the model would differ: seen is"),
        (lambda: mjp.wrap(timms(proj_bias=False)), mjp.CheckpointError, "attn.proj.bias is None"),
        (lambda: torch.nn.DataParallel(tiny()), mjp.ConfigError, r"writes wrapped.*\.module"),
        (lambda: tiny(depth=3, features_only=True), mjp.ConfigError, "writes wrapped models"),
        (lambda: tiny(depth=3, features_only=True).model, mjp.CheckpointError, "would differ"),
    ],
)
def test_what_could_not_be_built_again_is_not_saved(build, error, words, tmp_path):
    with pytest.raises(error, match=words):
        mjp.save(build(), tmp_path / "model")
    assert not (tmp_path / "model").exists()


def changed(model):
    """In ways that none of its arguments says."""
    model.reset_classifier(3, "avg")
    model.set_input_size(patch_size=(8, 8))
    model.epoch = 3
    for block in model.blocks:
        block.attn.fused_attn = False
    return model


@pytest.mark.parametrize(
    "model",
    [
        lambda: changed(tiny()),
        lambda: mjp.wrap(timms(qkv_bias=False, num_heads=6, reg_tokens=2)),
        lambda: mjp.wrap(timms("resnet18", in_chans=1, num_classes=3)),
        lambda: torch.nn.SyncBatchNorm.convert_sync_batchnorm(mjp.create_model("resnet18")),
        lambda: mjp.wrap(OTHERS["swin"].build(), mjp.MJPConfig(absolute_positions="added")),
    ],
    ids=["changed", "arguments", "channels", "synchronised", "positions"],
)
def test_models_changed_in_ordinary_ways_come_back(model, tmp_path):
    model = model().eval()
    mjp.save(model, tmp_path)
    again = mjp.load(tmp_path).eval()
    images = torch.randn(2, getattr(model, "in_chans", 3), 64, 32)
    # Not bit for bit: one of them computes attention without the fused kernel.
    torch.testing.assert_close(again(images), model(images), rtol=1e-5, atol=1e-6)


DROPS = {"drop_rate": 0.2, "proj_drop_rate": 0.15, "attn_drop_rate": 0.25, "drop_path_rate": 0.3}


@pytest.mark.parametrize(
    "build",
    [
        lambda: timms(depth=3, pos_drop_rate=0.1, patch_drop_rate=0.5, **DROPS),
        lambda: OTHERS["swin"].build(**DROPS),
        lambda: timms("resnet18", drop_rate=0.2, global_pool="avgmax"),
    ],
    ids=["vit", "swin", "resnet"],
)
def test_dropout_of_every_kind_comes_back(build, tmp_path):
    model = mjp.wrap(build())
    mjp.save(model, tmp_path)
    again = mjp.load(tmp_path).timm_arguments()
    expected = model.timm_arguments()
    for name in [name for name in expected if "drop" in name]:
        assert expected[name] > 0
        assert again[name] == pytest.approx(expected[name]), name


def test_every_tensor_comes_back_in_its_own_precision(tmp_path):
    model = tiny().half()
    model.pos_embed.data = model.pos_embed.data.float()
    mjp.save(model, tmp_path)
    again = mjp.load(tmp_path)
    assert again.head.weight.dtype == torch.float16
    assert again.pos_embed.dtype == torch.float32
    assert again.pos_embed.requires_grad


def test_saving_does_not_touch_the_random_state_or_a_file_in_its_place(tmp_path):
    state = torch.get_rng_state()
    model = tiny()
    torch.set_rng_state(state)
    mjp.save(model, tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(mjp.CheckpointError, match="the model cannot be written to"):
        mjp.save(model, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


KILLED_WHILE_WRITING = """
import os, resource, signal, sys, mjp
model = mjp.create_model("resnet18")
if child := os.fork():
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
else:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # The kernel kills who writes more than this.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    mjp.save(model, sys.argv[1])
"""


def test_a_writer_that_is_killed_leaves_the_old_model_and_the_next_one_clears_up(tmp_path):
    old = tiny()
    mjp.save(old, tmp_path / "best")
    whole = {path.name: path.read_bytes() for path in (tmp_path / "best").iterdir()}
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, tmp_path / "best"], check=True)
    left = {path.name for path in (tmp_path / "best").iterdir()} - {".part"}
    assert {name: (tmp_path / "best" / name).read_bytes() for name in left} == whole
    assert torch.equal(mjp.load(tmp_path / "best").head.weight, old.head.weight)
    assert list((tmp_path / "best" / ".part").iterdir())
    mjp.save(old, tmp_path / "best")
    assert {path.name for path in (tmp_path / "best").iterdir()} == set(whole)


def test_tables_of_another_grid_are_resampled_from_the_grid_they_have(tmp_path):
    mjp.save(tiny(), tmp_path)
    expected = mjp.load(tmp_path, img_size=(32, 64))
    model = tiny(img_size=(32, 64))  # As many patches, lying otherwise.
    mjp.load_weights(model, tmp_path)
    torch.testing.assert_close(model.pos_embed, expected.pos_embed)
    model = tiny(img_size=(128, 64))
    mjp.load_weights(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(model.pos_embed, mjp.load(tmp_path, img_size=(128, 64)).pos_embed)


def test_a_table_of_an_unknown_grid_or_with_other_prefix_rows_is_refused_by_its_shape(tmp_path):
    save_file(VITS["plain"].build().state_dict(), tmp_path / "plain.safetensors")
    words = r"pos_embed is \(1, 9, 48\), the model's"
    for model in (tiny(img_size=(128, 64)), tiny(reg_tokens=4)):
        with pytest.raises(mjp.CheckpointError, match=words):
            mjp.load_weights(model, tmp_path / "plain.safetensors")


def break_off(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def drop_a_key(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["unknown_position"]
    changed = {"stranger": torch.zeros(3), "norm.bias": torch.zeros(4)}
    save_file(tensors | changed, folder / "model.safetensors")


def edited(old, new):
    """Puts something else into the configuration."""

    def edit(folder):
        text = (folder / "config.json").read_text()
        assert old in text
        (folder / "config.json").write_text(text.replace(old, new))

    return edit


FILE_TO_LOAD = edited('"num_classes": 7,\n    "img', '"checkpoint_path": "x.pth",\n    "img')


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (break_off, mjp.CheckpointError, "is not a whole file of weights"),
        (
            drop_a_key,
            mjp.CheckpointError,
            r"missing unknown_position\n  unexpected stranger\n  norm.bias is \(4,\), the model's",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), mjp.CheckpointError, "no file of"),
        (lambda folder: (folder / "config.json").unlink(), mjp.CheckpointError, "no config.json"),
        (edited("{", ""), mjp.CheckpointError, "is not the configuration"),
        (
            edited('"model_args": {', '"model_args": 1, "x": {'),
            mjp.CheckpointError,
            "is not the con",
        ),
        (edited("mjp_vit_tiny", "vit_tiny"), mjp.CheckpointError, "which is no model of mjp"),
        (edited("mjp_vit_tiny", "mjp_vit_tinny"), mjp.ConfigError, "did you mean vit_tiny_patch16"),
        (FILE_TO_LOAD, mjp.ConfigError, "checkpoint_path is no argument here"),
        (edited('"depth"', '"shallow"'), mjp.CheckpointError, "argument 'shallow'"),
        (edited('"positions"', '"position"'), mjp.ConfigError, "MJPConfig has no field position;"),
    ],
)
def test_a_damaged_or_foreign_folder_is_a_clear_error(damage, error, words, tmp_path):
    mjp.save(tiny(), tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=words):
        mjp.load(tmp_path)


def test_what_timms_training_saves_loads_and_of_it_the_averaged_weights(tmp_path):
    plain, average = VITS["plain"].build(), ModelEmaV3(VITS["plain"].build())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    settings = argparse.Namespace(model="vit_tiny_patch16_224")
    folders = {"checkpoint_dir": str(tmp_path), "recovery_dir": str(tmp_path)}
    saver = CheckpointSaver(plain, optimizer, args=settings, model_ema=average, **folders)
    saver.save_checkpoint(0, 1.0)
    model = tiny()
    mjp.load_weights(model, tmp_path / "last.pth.tar")
    assert torch.equal(model.head.weight, average.module.head.weight)


def test_weights_of_another_configuration_are_refused_with_the_keys(tmp_path):
    mjp.save(tiny(), tmp_path)
    words = r"unexpected locator.layers(.|\n)*written under another MJPConfig"
    with pytest.raises(mjp.CheckpointError, match=words):
        mjp.load_weights(tiny(mjp.VARIANTS["G"]), tmp_path)


def test_a_file_that_would_run_code_is_not_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (print, ("the trap was sprung",))

    torch.save({"model": {"x": torch.zeros(1)}, "trap": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(mjp.CheckpointError, match="loading such a file can run code"):
        mjp.load_weights(tiny(), tmp_path / "trap.pth")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 half a zip"])
@pytest.mark.parametrize("name", ["x.pth", "x.safetensors"])
def test_files_that_are_nothing_are_clear_errors(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(mjp.CheckpointError, match="is not a whole file of weights"):
        mjp.load_weights(tiny(), tmp_path / name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([torch.zeros(1)], "something else than named tensors"),
        ({7: torch.zeros(1)}, "something else than named tensors"),
        ({"epoch": 3}, "holds epoch beside tensors"),
        ({"model": {"pos_embed.weight": torch.zeros(2, 48)}}, "expected a row for the class"),
    ],
)
def test_files_of_other_things_are_clear_errors(content, words, tmp_path):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(mjp.CheckpointError, match=words):
        mjp.load_weights(tiny(), tmp_path / "x.pth")


@pytest.mark.parametrize("letter", ["J", "G"])
def test_the_authors_checkpoints_load_without_the_class_of_their_settings(
    letter, tmp_path, monkeypatch
):
    model = tiny(mjp.VARIANTS[letter])
    state = {name.replace("locator.", "dlocr."): v for name, v in model.state_dict().items()}
    tables = (state.pop("pos_embed")[0], state.pop("unknown_position")[0])
    state["pos_embed.weight"] = torch.cat(tables)

    class CfgNode(dict):
        __module__, __qualname__ = "yacs.config", "CfgNode"

    with monkeypatch.context() as installed:  # The writer has the class, the reader has not.
        for name in ("yacs", "yacs.config"):
            installed.setitem(sys.modules, name, types.ModuleType(name))
        sys.modules["yacs.config"].CfgNode = CfgNode
        config = CfgNode(TRAIN=CfgNode(EPOCHS=300))
        config._frozen = True
        torch.save({"model": state, "config": config, "epoch": 1}, tmp_path / "a.pth")
    ours = tiny(mjp.VARIANTS[letter])
    mjp.load_weights(ours, tmp_path / "a.pth")
    for name, value in model.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
