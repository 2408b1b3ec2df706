"""Records of a study, made up: runs, seeds and evaluations as `mjp study` collects them."""

import random
from dataclasses import dataclass

from mjp.core.records import Record
from tests.report.made_runs import interval

RATIOS = (0.03, 0.27, 0.5, 0.9)
EPOCHS = 20
TRAINED = "jigsaws"


@dataclass(frozen=True)
class Made:
    """A run to make up."""

    name: str
    tables: str = "ablation"
    baseline: str | None = "A"
    seeds: tuple[int, ...] = (0,)
    top1: float = 60.0
    consistency: float = 50.0
    ratio: float | None = 0.0
    variant: str | None = None
    label: str = ""
    architecture: str = "deit_tiny_patch16_224"
    noise: float = 0.1
    psnr: tuple[float, float] | None = None
    mae: tuple[float, float] | None = None
    error: float | None = None
    epoch_seconds: float = 10.0
    alone: bool = False
    rate: float = 4.0
    trained: bool = True


THREE = (0, 1, 2)
ABLATION = (
    Made("A", "ablation backbones robustness convergence", None, THREE, 60.0, 40.0, 0.0, "A",
         "A: plain", mae=(0.945, 0.076), error=50.0),
    Made("B", top1=56.0, consistency=99.0, variant="B"),
    Made("C", top1=50.0, consistency=60.0, ratio=1.0, variant="C"),
    Made("D", "ablation gamma", top1=60.2, consistency=40.5, variant="D", psnr=(80.0, 80.0)),
    Made("E", "ablation convergence", seeds=THREE, top1=58.0, consistency=55.0, ratio=0.03,
         variant="E", rate=4.5),
    Made("G", "ablation convergence", seeds=THREE, top1=60.1, consistency=65.0, ratio=0.03,
         variant="G", rate=3.8),
    Made("I", top1=60.1, consistency=65.0, ratio=0.03, variant="I", mae=(0.566, 0.042)),
    Made("J", "ablation gamma backbones robustness convergence", seeds=THREE, top1=61.5,
         consistency=66.0, ratio=0.03, variant="J", psnr=(30.0, 42.0), mae=(1.3, 0.134),
         error=47.0, rate=3.0),
)  # fmt: skip
GAMMA = tuple(
    Made(
        f"gamma-{ratio:g}",
        "gamma robustness" if ratio == 0.27 else "gamma",
        "D",
        top1=60.0,
        consistency=70.0 + 40 * ratio,
        ratio=ratio,
        variant="J",
        label=f"J: MJP, γ = {ratio:g}",
        psnr=(25.0 - 30 * ratio, 40.0 - 25 * ratio),
        error=46.0 if ratio == 0.27 else None,
    )
    for ratio in (0.27, 0.09, 0.5)
)
BACKBONES = (
    Made("swin", "backbones", None, top1=64.0, consistency=30.0, variant="A",
         architecture="swin_tiny_patch4_window7_224"),
    Made("swin-mjp", "backbones", "swin", top1=64.1, consistency=52.0, ratio=0.03, variant="J",
         architecture="swin_tiny_patch4_window7_224"),
    Made("resnet", "backbones", None, top1=63.0, consistency=45.0, variant="A",
         architecture="resnet50"),
    Made("resnet-mjp", "backbones", "resnet", top1=63.2, consistency=60.0, ratio=0.03, variant="J",
         architecture="resnet50"),
)  # fmt: skip
FINETUNE = (
    Made("pretrained", "finetune robustness", None, top1=72.0, consistency=60.0, trained=False,
         error=45.0),
    Made("finetuned", "finetune robustness", None, THREE, 75.0, 62.0, error=44.0),
    Made("finetuned-mjp-0.27", "finetune robustness", "finetuned", THREE, 74.8, 85.0, 0.27,
         error=44.5),
)  # fmt: skip
COST = (
    Made("cost-A", "cost", None, THREE, variant="A", alone=True, noise=0.01),
    Made("cost-J", "cost", "cost-A", THREE, variant="J", ratio=0.03, alone=True, noise=0.01,
         epoch_seconds=10.08),
)  # fmt: skip
REPEAT = (Made("again", "repeat", "A", variant="A", label="A: plain, seed 0 once more"),)
OTHER = (Made("odd", "something-else", None, top1=12.0, consistency=20.0),)
ALL = (*ABLATION, *GAMMA, *BACKBONES, *FINETUNE, *COST, *REPEAT, *OTHER)


def records(runs=ALL, name="paper"):
    """All records of these runs, without those that are worked out of them."""
    found = []
    for run in runs:
        for seed in run.seeds:
            found += _seed(run, seed, name)
    return found + list(_differences(runs, name))


def _drawn(run, seed):
    draw = random.Random(f"{run.name} {seed}")
    return lambda value, scale=1.0: round(value + draw.gauss(0, run.noise * scale), 6)


def top1_of(run, seed):
    """The made-up accuracy of a seed."""
    return _drawn(run, seed)(run.top1)


def _seed(run, seed, name):
    drawn = _drawn(run, seed)
    top1 = drawn(run.top1)
    facts = {"study": name, "run": run.name, "seed": seed}
    told = {
        **facts,
        "label": run.label or run.name,
        "tables": run.tables,
        "baseline": run.baseline,
        "variant": run.variant,
        "alone": run.alone,
        "parallel": 1 if run.alone else 3,
        "init": None if run.trained else "some.safetensors",
        "epochs": EPOCHS if run.trained else 0,
    }
    if not run.trained:
        yield Record("study run", told, {})
    else:
        told |= {"architecture": run.architecture, "image_size": "64x64", "ratio": run.ratio}
        told |= {"batch": 512, "train_images": 48000, "val_images": 10000, "precision": "bf16"}
        seconds = drawn(run.epoch_seconds)
        values = {"top1": top1, "best_top1": top1, "best_epoch": EPOCHS, "parameters": 5_500_000}
        values |= {"seconds": EPOCHS * seconds, "epoch_seconds": seconds}
        yield Record("study run", told, values | {"images_per_second": 48000 / seconds})
        for epoch in range(1, EPOCHS + 1):
            reached = top1 * (1 - 2 ** (-epoch / run.rate)) / (1 - 2 ** (-EPOCHS / run.rate))
            yield Record("study epoch", {**facts, "epoch": epoch}, {"top1": round(reached, 4)})
    yield from _evaluations(run, facts, top1, drawn)


def _evaluations(run, facts, top1, drawn):
    own = {**facts, "evaluation": TRAINED, "data": "val", "images": 10000}
    yield Record("study accuracy", own, interval("top1", top1))
    for ratio in RATIOS:
        same = 100 - (100 - run.consistency) * min(1.0, 2 * ratio)
        values = interval("consistency", drawn(same)) | interval("accuracy", drawn(top1 * 0.8))
        values |= interval("diff_norm", drawn(20 - same / 6, 0.1), 0.1)
        told = {**own, "ratio": ratio, "jigsaw": "positions" if run.ratio else "pixels"}
        yield Record("study jigsaw", {**told, "draws": 2}, values)
    if run.mae is not None:
        values = {"mae_1d": drawn(run.mae[0], 0.01), "mae_2d": drawn(run.mae[1], 0.01)}
        yield Record("study positions", {**facts, "evaluation": "positions"}, values)
    if run.psnr is not None:
        told = {**facts, "evaluation": "leak", "images": 16, "size": "48x48"}
        told["defence"] = f"mjp={run.ratio:g}" if run.ratio else "none"
        for attack, psnr in zip(("patch_solve", "adaptive_solve"), run.psnr, strict=True):
            values = interval("psnr", drawn(psnr)) | {"baseline_mean_psnr": 11.5}
            yield Record("study leak", {**told, "attack": attack}, values)
    if run.error is not None:
        told = {**facts, "evaluation": "corruptions", "data": "val", "images": 1000}
        for corruption in ("fog", "gaussian_noise"):
            values = interval("error", drawn(run.error))
            yield Record("study corruption", {**told, "corruption": corruption}, values)
        values = interval("mean_error", drawn(run.error)) | {"clean_error": 100 - top1}
        yield Record("study corruption summary", told, values)


def _differences(runs, name):
    """Paired over images, for every run and seed that its baseline has too."""
    seeds = {(run.name, seed): run for run in runs for seed in run.seeds}
    for (run, seed), made in seeds.items():
        other = seeds.get((made.baseline, seed))
        if other is None:
            continue
        facts = {"study": name, "run": run, "seed": seed, "evaluation": TRAINED}
        facts |= {"than": other.name, "images": 10000}
        for value, ratio, more in (
            ("top1", None, top1_of(made, seed) - top1_of(other, seed)),
            ("consistency", 0.5, made.consistency - other.consistency),
            ("diff_norm", 0.5, (other.consistency - made.consistency) / 6),
        ):
            told = {**facts, "value": value, "ratio": ratio}
            yield Record("study difference", told, interval("difference", round(more, 6), 0.4))
