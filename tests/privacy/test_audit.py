"""`mjp audit` and `mjp bench audit` end to end, on tiny models and made-up pictures."""

import contextlib
import io
import json
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy import stats

import mjp
from mjp.cli import main
from mjp.data.decoding import View
from mjp.data.source import FolderSource
from mjp.privacy import audit as audits
from mjp.privacy import defence_parts
from tests.data.pictures import CLASSES, encoded, write_folder
from tests.evaluate.subjects import SIZE, records, tiny
from tests.forks import Fork
from tests.train.running import finish

pytestmark = pytest.mark.unchecked  # Wrong input must meet our own errors.

MASKING = "mjp=0.27"
DEFENCES = ("none", MASKING, "unshared", "clip=1+noise=0.01")
SHOWN = [defence for defence in DEFENCES if defence != "unshared"]
"""Under which some attack gives a picture."""
MOST = 4
CLOSED = ("april", "patch_solve", "adaptive_solve")
LABELS = ("cat", "ant", "bee")
"""Another order than the data's."""


def run(*arguments):
    """Runs the command line; its exit status."""
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return stop.value.code


def victim(variant="J", labels=CLASSES, **more):
    """A tiny model that is wider than it has patches, so that its pictures can be solved for."""
    model = tiny(variant, labels=labels, embed_dim=64, num_heads=4, **more)
    for parameter in model.parameters():
        parameter.data.mul_(0.2 if parameter.dim() > 1 else 1)
    return model


@dataclass(frozen=True)
class Finished:
    """An audit that is done: where it lies, how it was asked for, what it printed."""

    home: Path
    asked: tuple
    printed: str

    @property
    def out(self):
        return self.home / "out"

    def of(self, defence, attack, kind="audit"):
        asked = {"defence": defence, "attack": attack}
        found = records(self.out, kind)
        return [one["values"] for one in found if asked.items() <= one["conditions"].items()]

    def value(self, defence, attack):
        (found,) = self.of(defence, attack)
        return found

    def right(self, change=lambda inputs: inputs):
        """Of each picture, whether the model called by hand is right; about changed inputs too."""
        model = mjp.load(self.home / "m").eval()
        source, cut = FolderSource(self.home / "set"), View(SIZE, 1.0).transform()
        images = torch.stack([torch.as_tensor(cut(source.picture(i))) for i in range(len(source))])
        cfg = model.pretrained_cfg
        mean, std = (torch.tensor(cfg[name]).reshape(3, 1, 1) for name in ("mean", "std"))
        with torch.no_grad():
            best = model(change(((images.double() / 255 - mean) / std).float())).argmax(dim=1)
        names = [source.classes[label] for label in source.labels]
        return [LABELS[i] == name for i, name in zip(best, names, strict=True)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("audit")
    mjp.save(victim(labels=LABELS), home / "m")
    write_folder(home / "set", count=9)
    asked = ("audit", "--model", home / "m", "--images", home / "set", "--most", MOST)
    asked = (*asked, "--chunk", "2", "--show", "2", "--defences", *DEFENCES)
    with (
        contextlib.redirect_stdout(io.StringIO()) as printed,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["mjp", *map(str, asked)])
        assert run(*asked, "--out", home / "out") == 0
    return Finished(home, asked, printed.getvalue())


def test_there_is_a_record_for_every_attack_defence_and_picture(finished):
    combinations = [(defence, attack) for defence in DEFENCES for attack in CLOSED]
    found = [one["conditions"] for one in records(finished.out, "audit")]
    assert [(one["defence"], one["attack"]) for one in found] == combinations
    accuracy = records(finished.out, "audit accuracy")
    assert [one["conditions"]["defence"] for one in accuracy] == [*DEFENCES]
    images = [one["conditions"] for one in records(finished.out, "audit image")]
    assert sorted((one["defence"], one["attack"], one["number"]) for one in images) == sorted(
        (*combination, number) for combination in combinations for number in range(MOST)
    )
    for part in (
        "m: every attack",
        "What the defences cost",
        "m, no defence: An attacker recovers the picture: ",
    ):
        assert part in finished.printed


def test_an_undefended_picture_comes_back_exactly(finished):
    values = finished.value("none", "patch_solve")
    assert values["psnr_lowest"] >= 60
    assert values["ssim"] > 0.9999
    assert values["identified_pixels"] == values["identified_features"] == 1
    assert values["rank"] == values["rank_needed"] == 24
    assert values["level"] == "recovered"
    assert values["masked_patches"] == 0
    assert values["mask_recovered"] is values["psnr_masked"] is None
    weights = records(finished.out)[0]["conditions"]["weights"]
    for number in range(2):
        original, found = (
            np.asarray(Image.open(f"{finished.out}/pictures/{weights}-none-{what}-{number}.png"))
            for what in ("original", "patch_solve")
        )
        assert original.shape == (*SIZE, 3)
        assert np.abs(original.astype(int) - found).max() <= 1
    assert not list((finished.out / "pictures").glob("*-2.png"))  # --show 2


def test_noise_makes_the_attack_fail_and_nobody_calls_that_private(finished):
    values = finished.value("clip=1+noise=0.01", "patch_solve")
    assert values["psnr"] < values["baseline_mean_psnr"] + 1
    assert values["level"] == "failed"
    assert "no proof of privacy" in values["verdict"]


def test_summaries_are_those_of_the_single_pictures(finished):
    values = finished.value(MASKING, "adaptive_solve")
    each = finished.of(MASKING, "adaptive_solve", "audit image")
    psnrs = [one["psnr"] for one in each]
    assert values["psnr"] == pytest.approx(np.mean(psnrs))
    assert (values["psnr_lowest"], values["psnr_highest"]) == (min(psnrs), max(psnrs))
    low, high = stats.t.interval(0.95, MOST - 1, np.mean(psnrs), stats.sem(psnrs))
    assert (values["psnr_low"], values["psnr_high"]) == pytest.approx((low, high))
    assert values["condition"] == pytest.approx(np.median([one["condition"] for one in each]))
    assert values["images"] == values["applied"] == values["gallery"] == MOST


def test_a_masked_picture_is_split_into_what_was_masked_and_what_was_not(finished):
    values = finished.value(MASKING, "adaptive_solve")
    assert values["masked_patches"] == 6
    assert values["mask_recovered"] == 1
    assert values["rank"] == values["rank_needed"] == 18
    assert values["psnr_unmasked"] > values["psnr"] > values["psnr_masked"]
    naive = finished.value(MASKING, "patch_solve")
    assert naive["psnr"] < values["psnr"]
    assert "6 patches hide behind the unknown embedding" in naive["reason"]


@pytest.mark.parametrize(
    ("defence", "reason"),
    [
        ("none", "norm and a residual around its attention"),
        ("unshared", "the gradient of the position embeddings is not shared"),
    ],
)
def test_an_attack_that_does_not_apply_gives_a_reason_and_no_number(finished, defence, reason):
    values = finished.value(defence, "april")
    assert reason in values["reason"]
    assert (values["applied"], values["level"]) == (0, "does not apply")
    assert {values[name] for name in ("psnr", "psnr_lowest", "ssim", "identified_pixels")} == {None}
    for one in finished.of(defence, "april", "audit image"):
        assert one["applies"] is False
        assert "psnr" not in one


def test_accuracy_is_that_of_the_model_called_by_hand(finished):
    right = finished.right()
    assert 0 < sum(right) < 9
    accuracy = records(finished.out, "audit accuracy")
    found = {one["conditions"]["defence"]: one["values"] for one in accuracy}
    for defence in ("none", "unshared", "clip=1+noise=0.01"):  # They feed the model the same.
        assert found[defence]["top1"] == pytest.approx(100 * np.mean(right))
        assert found[defence]["accuracy_images"] == 9
    assert found["none"]["accuracy_note"] == ""
    assert "training with such gradients" in found["clip=1+noise=0.01"]["accuracy_note"]
    assert found["none"]["fidelity"] == pytest.approx(1)
    assert found["clip=1+noise=0.01"]["fidelity"] < 0.9


@dataclass(frozen=True)
class Grey(defence_parts.Part):
    """A defence that only this test knows: pictures lose their colours."""

    name: ClassVar[str] = "grey"
    label: ClassVar[str] = "Grey"
    kind: ClassVar[str] = "grey"
    words: ClassVar[str] = "grey pictures"
    clause: ClassVar[str] = "takes the colours out of its pictures"

    def arrange(self, images, plan):
        return images.mean(dim=1, keepdim=True).expand_as(images), plan


del defence_parts.PARTS["grey"]  # Other tests go through all that there are.


def test_accuracy_under_a_defence_nobody_knows_is_of_what_it_feeds_the_model(
    finished, tmp_path, monkeypatch
):
    monkeypatch.setitem(defence_parts.PARTS, "grey", Grey)
    out = tmp_path / "out"
    flags = ("--defences", "none", "grey", "--attacks", "patch_solve", "--out", out)
    assert run(*finished.asked, *flags) == 0
    right = finished.right(lambda inputs: Grey().arrange(inputs, None)[0])
    plain, defended = (one["values"] for one in records(out, "audit accuracy"))
    assert defended["top1"] == pytest.approx(100 * np.mean(right))
    assert defended["top1"] != plain["top1"]
    assert defended["accuracy_note"] == ""


def test_the_library_gives_what_the_command_gives(finished, tmp_path):
    model = mjp.load(finished.home / "m").eval()
    told = [one["conditions"] for one in records(finished.out, "audit image")]
    names = list(dict.fromkeys(one["image"] for one in told))
    cut = View(SIZE, 1.0).transform()
    levels = [torch.as_tensor(cut(Image.open(name).convert("RGB"))) for name in names]
    labels = torch.tensor([LABELS.index(Path(name).parent.name) for name in names])
    asked = {"attacks": CLOSED[1:], "defences": ("none", MASKING), "chunk": 2, "names": names}
    images, told = torch.stack(levels) / 255, []
    report = mjp.audit(model, images, labels, **asked, show=1, tell=told.append)
    assert sum(told) == pytest.approx(1)
    for record in report.records:
        if record.kind == "audit":
            theirs = finished.value(record.conditions["defence"], record.conditions["attack"])
            assert record.values["level"] == theirs["level"]
            assert record.values["psnr"] == pytest.approx(theirs["psnr"], rel=1e-3)
    assert {what for _, what, _ in report.images} == {"original", "client", *CLOSED[1:]}
    # In a folder, the same; and once more it takes what it found.
    first, second = (
        mjp.audit(model, images, labels, **asked, out=tmp_path / "out", resume=True)
        for _ in range(2)
    )
    assert [one.key() for one in first.records] == [one.key() for one in report.records]
    assert [one.values for one in first.records] == [one.values for one in second.records]


def test_the_report_and_its_grids_show_pictures(finished):
    page = (finished.out / "report.html").read_text()
    assert page.count('src="data:image/png;base64,') == len(SHOWN)
    grids = list(finished.out.glob("grid-*.png"))
    assert len(grids) == len(SHOWN)
    for grid in grids:
        levels = np.asarray(Image.open(grid).convert("RGB")).reshape(-1, 3)
        assert len(np.unique(levels, axis=0)) > 1000


def test_bundled_photographs_need_no_data_and_have_no_accuracy(tmp_path, capsys):
    mjp.save(victim("A"), tmp_path / "m")
    asked = ("audit", "--model", tmp_path / "m", "--most", "2", "--defences", "none", "--json")
    assert run(*asked, "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert in_order(lines) == in_order(records(tmp_path / "out"))  # Records and nothing else.
    assert (tmp_path / "out" / "report.html").is_file()
    (accuracy,) = records(tmp_path / "out", "audit accuracy")
    assert accuracy["values"]["top1"] is None


def test_several_rounds_batches_and_single_files_work(tmp_path):
    mjp.save(victim(), tmp_path / "m")
    (tmp_path / "loose").mkdir()
    for number in range(3):
        (tmp_path / "loose" / f"{number}.png").write_bytes(encoded(number, (40, 50)))
    asked = ("audit", "--model", tmp_path / "m", "--attacks", "adaptive_solve")
    flags = ("--images", tmp_path / "loose", "--rounds", "3", "--defences", "mjp=0.27", "batch=2")
    assert run(*asked, *flags, "--out", tmp_path / "out") == 0
    masked, batched = records(tmp_path / "out", "audit")
    assert masked["values"]["psnr_lowest"] > 40  # Three masks leave next to nothing open.
    assert (masked["values"]["images"], batched["values"]["images"]) == (3, 2)
    assert "2 images are summed up" in batched["values"]["reason"]
    one = ("--images", tmp_path / "loose" / "1.png", "--defences", "none", "--gradients", "fp64")
    assert run(*asked, *one, "--out", tmp_path / "one") == 0
    (record,) = records(tmp_path / "one", "audit image")
    assert record["conditions"]["image"] == "1.png"
    assert record["values"]["psnr"] >= 60


def test_a_client_that_localizes_hides_nothing(finished, tmp_path):
    flags = ("--localization-weight", "0.5", "--attacks", "patch_solve", "--defences", "none")
    assert run(*finished.asked, *flags, "--out", tmp_path / "out") == 0
    assert records(tmp_path / "out", "audit")[0]["values"]["psnr"] >= 60


EVERY = (
    *("mjp=1", "mjp=0.27,0.5", "shuffle=0.5", "frozen", "unshared", "sincos", "fp16", "bf16"),
    *("prune=0.9", "clip=1", "noise=0.001", "dp=1", "batch=2", "steps=2,0.01"),
    "mjp=0.27+bf16+clip=1+noise=0.0001+batch=2",
)


def test_two_models_under_every_defence_go_through(tmp_path, capsys):
    mjp.save(victim(), tmp_path / "ours")
    mjp.save(victim(depth=1), tmp_path / "short")
    models = ("--model", tmp_path / "ours", f"[red]={tmp_path / 'short'}")  # No markup.
    asked = ("audit", *models, "--most", "2", "--show", "0", "--attacks", *CLOSED[1:])
    assert run(*asked, "--defences", *EVERY, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "[red]: every attack" in printed
    found = records(tmp_path / "out", "audit")
    assert [(one["conditions"]["model"], one["conditions"]["defence"]) for one in found] == [
        (model, defence) for model in ("ours", "[red]") for defence in EVERY for _ in CLOSED[1:]
    ]
    assert not list(tmp_path.glob("out/grid-*.png"))
    epsilons = {
        one["conditions"]["defence"]: one["values"]["epsilon"]
        for one in records(tmp_path / "out", "audit accuracy")
    }
    assert epsilons["dp=1"] > 0
    assert [name for name, value in epsilons.items() if value is not None] == ["dp=1"]


def in_order(found):
    return sorted(found, key=lambda one: json.dumps([one["kind"], one["conditions"]]))


def without_times(found):
    return [
        {**one, "values": {k: v for k, v in one["values"].items() if k != "seconds"}}
        for one in in_order(found)
    ]


@pytest.fixture
def copied(finished, tmp_path):
    """The finished audit in a folder of its own, and how to go on with it."""
    shutil.copytree(finished.out, tmp_path / "out")
    return tmp_path / "out", (*finished.asked, "--resume", "--out", tmp_path / "out")


@pytest.fixture
def attacked(monkeypatch):
    """The attacks that are run, by name, as they are run."""
    names = []
    before = audits.attack_step

    def attack_step(clients, gallery, attack, effort):
        names.append(attack)
        return before(clients, gallery, attack, effort)

    monkeypatch.setattr(audits, "attack_step", attack_step)
    return names


def test_a_resumed_audit_is_the_straight_one_and_does_nothing_twice(finished, copied, attacked):
    out, asked = copied
    file = out / "records.jsonl"
    lines = [line for line in file.read_text().splitlines(True) if '"audit image"' in line]
    whole = sorted(
        lines, key=lambda line: DEFENCES.index(json.loads(line)["conditions"]["defence"])
    )
    file.write_text("".join(whole[:26]) + whole[26][:50])  # Cut off in the middle of a line.
    assert run(*asked) == 0
    assert len(attacked) == len(DEFENCES) * len(CLOSED) * 2 - 13  # Chunks of two pictures.
    assert without_times(records(out)) == without_times(records(finished.out))
    attacked.clear()
    assert run(*asked) == 0
    assert attacked == []


@pytest.mark.parametrize("change", ["nothing", "seed", "weights", "colours", "no resume"])
def test_what_was_found_of_something_else_is_not_reused(finished, copied, attacked, change):
    out, asked = copied
    mjp.save(victim(labels=LABELS, depth=1), out / "m")
    more = {
        "seed": ("--seed", "1"),
        "weights": ("--model", out / "m"),
        "colours": ("--mean", "0.1", "0.1", "0.1"),
    }
    if change == "no resume":
        asked = tuple(word for word in asked if word != "--resume")
    flags = ("--attacks", "patch_solve", "--defences", "none", *more.get(change, ()))
    assert run(*asked, *flags) == 0
    assert len(attacked) == (0 if change == "nothing" else 2)
    if change == "no resume":  # Each measurement stands there once.
        assert len(records(out)) == len(records(finished.out))
    if change == "nothing":  # Until there are other pictures of the same names.
        path = Path(records(out, "audit image")[0]["conditions"]["image"])
        before = path.read_bytes()
        path.write_bytes(encoded(99))
        try:
            assert run(*asked, *flags) == 0
        finally:
            path.write_bytes(before)
        assert len(attacked) == 2


def test_two_processes_give_what_one_does(finished, tmp_path):
    code, shown, err = finish(Fork([*finished.asked, "--out", tmp_path / "two"], team=2))
    assert code == 0, err
    assert shown.count("records:") == 1
    found = zip(
        without_times(records(finished.out)), without_times(records(tmp_path / "two")), strict=True
    )
    for one, two in found:
        for record in (one, two):
            for name in ("processes", "hardware"):
                record["conditions"].pop(name, None)
        assert one["conditions"] == two["conditions"]
        for name, value in one["values"].items():
            if isinstance(value, float):
                value = pytest.approx(value, rel=1e-4)
            assert two["values"][name] == value, name


def test_ctrl_c_keeps_what_was_found(finished, tmp_path, attacked):
    out = tmp_path / "out"
    flags = ("--defences", "none", "--steps", "1000000", "--out", out)
    asked = (*finished.asked, *flags, "--attacks", "patch_solve", "invert")
    process = Fork(asked)
    file, end = out / "records.jsonl", time.monotonic() + 60
    while not (file.is_file() and file.read_bytes().count(b"\n") == 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.3)  # In the search.
    process.send_signal(signal.SIGINT)
    status, _, said = finish(process, 20)
    assert status == 130
    assert "--resume" in said
    assert str(out) in said
    assert "Traceback" not in said
    again = (*finished.asked, *flags, "--attacks", "patch_solve", "--resume")
    assert run(*again) == 0
    assert len(attacked) == 1  # Of two chunks; the first is there.


def gradients_of(model):
    """What a client sends of a picture, and the picture."""
    public = mjp.PublicModel.of(model)
    picture = torch.rand(1, 3, *SIZE, generator=torch.Generator().manual_seed(3))
    return mjp.share(public, public.normalized(picture), torch.tensor([1])), picture


@pytest.mark.parametrize("plain", [False, True])
def test_an_update_from_elsewhere_is_attacked_without_pictures(tmp_path, capsys, plain):
    model = victim()
    mjp.save(model, tmp_path / "m")
    update, picture = gradients_of(model)
    path = tmp_path / "client.safetensors"
    if plain:
        save_file({name: one.contiguous() for name, one in update.gradients.items()}, path)
    else:
        update.save(path)
    out = tmp_path / "out"
    asked = ("audit", "--model", tmp_path / "m", "--update", path, "--out", out)
    assert run(*asked, "--attacks", *CLOSED[:2]) == 0
    assert "the update, as an attacker reads it" in capsys.readouterr().out
    april, solved = records(out, "audit update")
    assert (april["values"]["applies"], solved["values"]["applies"]) == (False, True)
    assert solved["values"]["rank"] == solved["values"]["rank_needed"] == 24
    assert solved["conditions"]["update"] == "client.safetensors"
    assert [path.name for path in out.glob("*.png")] == ["recovered-patch_solve-0.png"]
    found = np.asarray(Image.open(out / "recovered-patch_solve-0.png")).transpose(2, 0, 1) / 255
    assert np.abs(found - picture[0].numpy()).max() < 0.5 / 255 + 1e-3
    assert run(*asked, "--attacks", "patch_solve", "--json") == 0
    assert json.loads(capsys.readouterr().out) == records(out)[-1]


THEIRS = '''
"""Somebody's own ViT: a linear patch embedding, channels last, names of their own."""

from types import SimpleNamespace

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU())

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + (q @ k.transpose(1, 2) * 0.1).softmax(dim=-1) @ v
        return x + self.mlp(x)


class TheirViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = nn.Linear(3 * 8 * 8, 64)
        self.cls = nn.Parameter(torch.randn(1, 1, 64))
        self.places = nn.Parameter(torch.randn(1, 25, 64))
        self.layers = nn.Sequential(Layer(64), Layer(64))
        self.answer = nn.Linear(64, 5)
        self.unused = nn.Linear(64, 2)

    def forward(self, images):
        batch, _, height, width = images.shape
        cells = images.reshape(batch, 3, height // 8, 8, width // 8, 8)
        cells = cells.permute(0, 2, 4, 3, 5, 1).reshape(batch, -1, 3 * 8 * 8)
        tokens = torch.cat([self.cls.expand(batch, -1, -1), self.tokenizer(cells)], dim=1)
        return SimpleNamespace(logits=self.answer(self.layers(tokens + self.places)[:, 0]))


def make():
    torch.manual_seed(0)
    return TheirViT()


def number():
    return 3
'''


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    (tmp_path / "their_vit.py").write_text(THEIRS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield ("audit", "--model", "ours=import:their_vit:make", "--size", *SIZE, "--most", "2")
    sys.modules.pop("their_vit", None)


NAMES = ("--patch-embedding", "tokenizer", "--positions", "places", "--classifier", "answer")


def test_a_model_of_one_s_own_is_audited_by_the_names_of_its_parts(theirs):
    flags = (*NAMES, "--patch-layout", "hwc", "--attacks", *CLOSED[:2])
    defences = ("none", "shuffle=0.27", "unshared")
    assert run(*theirs, *flags, "--defences", *defences, "--out", "out") == 0
    found = [one for one in records(Path("out"), "audit") if one["values"]["applied"]]
    plain, shuffled = found
    assert plain["conditions"]["model"] == "ours"
    assert plain["conditions"]["architecture"] == "TheirViT"
    assert plain["conditions"]["attack"] == "patch_solve"
    assert plain["values"]["psnr_lowest"] >= 60
    assert shuffled["values"]["client_psnr"] >= 60 > shuffled["values"]["psnr"]
    # The other order of a patch's values gives another picture, not an error.
    assert run(*theirs, *NAMES, "--defences", "none", "--out", "other") == 0
    (wrong,) = [
        one["values"]["psnr"]
        for one in records(Path("other"), "audit")
        if one["conditions"]["attack"] == "patch_solve"
    ]
    assert wrong < 40


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "--patch-embedding"),
        (("--patch-embedding", "cls"), "no convolution or linear layer of this model"),
        (("--patch-embedding", "answer"), "takes 64 values"),
        ((*NAMES[:2], "--positions", "cls"), "is no table of the positions"),
        ((*NAMES[:4], "--classifier", "cls"), "no linear layer"),
        (("--model", "import:their_vit:missing"), "import:their_vit:missing cannot be had"),
        (("--model", "import:their_vit:number"), "gives a int, not an nn.Module"),
        ((*NAMES, "--defences", "mjp=0.27"), "cannot have the defence mjp=0.27"),
    ],
)
def test_names_that_do_not_fit_a_model_of_one_s_own_are_said(theirs, capsys, flags, message):
    assert run(*theirs, "--out", "out", *flags) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("wrong")
    mjp.save(victim(), home / "m")
    (home / "broken").mkdir()
    (home / "broken" / "half.png").write_bytes(encoded(1)[:40])
    (home / "empty").mkdir()
    (home / "garbage.safetensors").write_bytes(b"\xff" * 100)
    (home / "long.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    update, _ = gradients_of(victim())
    gradients = {name: one.contiguous() for name, one in update.gradients.items()}
    gradients_of(victim(depth=3))[0].save(home / "other.safetensors")
    gradients_of(victim(classes=5, labels=()))[0].save(home / "classes.safetensors")
    bad = {**gradients, "head.bias": torch.full_like(gradients["head.bias"], float("nan"))}
    save_file(bad, home / "nan.safetensors")
    save_file({"head.bias": torch.zeros(3, dtype=torch.int64)}, home / "whole.safetensors")
    save_file({}, home / "none.safetensors")
    for name, told in (
        ("claims", '{"batch": "many"}'),
        ("more", '{"labels": [1]}'),
        ("cut", '{"batch": '),
        ("defence", '{"defence": 3}'),
        ("rate", '{"learning_rate": "fast"}'),
    ):
        save_file(gradients, home / f"{name}.safetensors", metadata={"mjp_update": told})
    return home


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        (("--attacks", "patchsolve"), 2, "there is no attack 'patchsolve'"),
        (("--attacks", "april", "april"), 2, "name every attack once"),
        (("--defences", "mpj=0.27"), 2, "there is no defence 'mpj'; did you mean"),
        (("--defences",), 2, "name at least one defence"),
        (("--defences", "batch=9"), 2, "needs at least 9 pictures; raise --most"),
        (("--model", "resnet18@random"), 2, "name a layer with --patch-embedding"),
        (("--model", "no-such-model"), 2, "neither a folder nor a model of timm's"),
        (("--out", "garbage.safetensors"), 2, "results cannot be written to"),
        (("--most", "0"), 2, "most must be a whole number of at least 1, got 0"),
        (("--crop", "0"), 2, "crop"),
        (("--size", "30", "48"), 2, "30x48"),
        (("--std", "0", "0", "0"), 2, "std"),
        (("--device", "quantum"), 2, "is no device of torch"),
        (("--images", "no/such"), 1, "there is no picture, folder or data set no/such"),
        (("--images", "broken"), 1, "half.png"),
        (("--images", "empty"), 1, "empty"),
        (("--lpips", "no-such.pth"), 1, "no-such.pth"),
        (("--update", "garbage.safetensors"), 1, "is no safetensors file of gradients"),
        (("--update", "long.safetensors"), 1, "is no safetensors file of gradients"),
        (("--update", "broken"), 1, "broken"),
        (("--update", "none.safetensors"), 1, "holds no gradients"),
        (("--update", "more.safetensors"), 1, "says of itself what no update says"),
        (("--update", "cut.safetensors"), 1, "is no safetensors file of gradients"),
        (("--update", "claims.safetensors"), 1, "batch must be a whole number"),
        (("--update", "defence.safetensors"), 1, "defence"),
        (("--update", "rate.safetensors"), 1, "learning_rate"),
        (("--update", "whole.safetensors"), 1, "head.bias must be a tensor of numbers"),
        (("--update", "other.safetensors"), 2, "which this model has no parameter of"),
        (("--update", "classes.safetensors"), 2, "the update is of another model"),
        (("--update", "nan.safetensors"), 2, "head.bias has values that are no numbers"),
    ],
)
def test_wrong_input_is_said_in_one_line(home, monkeypatch, capsys, flags, status, message):
    monkeypatch.chdir(home)
    model = () if "--model" in flags else ("--model", "m")
    assert run("audit", *model, "--out", "out", *flags) == status
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
    assert len(said.splitlines()) == 1
