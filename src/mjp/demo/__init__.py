"""`mjp demo`: commands that train, measure and attack small ViTs, and one page on them."""

import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mjp.core.errors import ConfigError, StoppedError
from mjp.core.records import RECORDS, Record, Scalar
from mjp.core.verbs import Verb
from mjp.demo.sections import LEAD, METHOD_FILE, PANELS_FILE, TITLE
from mjp.demo.sections import SECTIONS as SECTIONS

if TYPE_CHECKING:
    from mjp.core.run import Run

TRAINING: dict[str, tuple[str, ...]] = {"positions": (), "digits": ("--run.epochs", "20")}
"""The data sets, each with what is changed of its recipe."""
MODELS = {"A": "plain ViT", "J": "ViT with MJP"}
"""The models by their rows of the paper's ablation, and what they are called."""
PRETRAINED = {
    "plain ViT on ImageNet classes": "mini-imagenet-plain",
    "ViT with MJP on ImageNet classes": "mini-imagenet-mjp",
}
"""The trained models of the package, and what they are called."""
IMAGES = 400
"""Images that accuracy and consistency are measured on."""
PHOTOGRAPHS = 4
"""Pictures that are attacked."""
STAGE = "demo stage"
"""The kind of the records that say which stages are done."""
FILES = (METHOD_FILE, PANELS_FILE, "log.txt", "report.html", RECORDS)


@dataclass(frozen=True)
class DemoOptions:
    """Train small ViTs without and with MJP, measure and attack them, and write one page.

    A few minutes on two CPU cores. What is finished is not done again: the command goes on where
    it was stopped.
    """

    out: Path = Path("runs/demo")
    """Folder for models, records and report.html."""
    ratio: float = 0.27
    """γ: share of patches that MJP masks and shuffles, between 0 and 1."""
    seed: int = 0
    """Seed of everything that is random."""
    image: Path | None = None
    """A picture of your own to attack first, before the bundled photographs."""
    fresh: bool = False
    """Remove what an earlier demonstration left in the folder, and start over."""


def run_demo(options: DemoOptions) -> None:
    """Does what is not done yet, then writes the page."""
    from mjp.catalog import sections
    from mjp.core.configuration import check_ratio
    from mjp.core.display import say
    from mjp.core.run import Run, command_line
    from mjp.demo.pictures import load_photograph
    from mjp.report.page import write_report

    check_ratio("ratio", options.ratio)
    if options.ratio in (0, 1):
        raise ConfigError(f"ratio must be above 0 and below 1 here, got {options.ratio:g}")
    if options.image is not None:
        load_photograph(options.image)  # Says what is wrong with it before anything is done.
    if options.fresh:
        clear(options.out)
    with Run.open(options.out, device="cpu", seed=options.seed) as run:
        conditions = _conditions(options)
        _check_same(run, conditions)
        stages = list_stages(options)
        for place, (title, leaves, work) in enumerate(stages, 1):
            done = Record(STAGE, {**conditions, "stage": title}, {})
            reused = run.done(done.key()) is not None and leaves.is_file()
            mark = " (done before)" if reused else ""
            say(f"[{place}/{len(stages)}] {title}{mark}")
            if not reused:
                with _logged(title, options.out):
                    run.write(*work(), environment=False)
                run.write(done)
    report = write_report(
        [options.out],
        options.out / "report.html",
        sections(),
        command=shlex.join(command_line()),
        title=TITLE,
        lead=LEAD,
        kind="Demonstration",
    )
    for line in report.lines:
        print(line)
    print(f"report: {report.path}")


def list_stages(options: DemoOptions) -> list[tuple[str, Path, Callable[[], list[Record]]]]:
    """All parts of the demonstration, in order: the title, a file that is there once it is done,
    and what does it and gives records of the demonstration's own."""
    from mjp.demo.pictures import show_method, show_panels

    out, ratio = options.out, options.ratio
    return [
        (
            "the method on a photograph",
            out / METHOD_FILE,
            lambda: [show_method(out, options.image, ratio, options.seed)],
        ),
        *(
            (title, out / folder / leaves, partial(_carry_out, words, out / folder))
            for title, folder, leaves, words in list_commands(options)
        ),
        ("four panels", out / PANELS_FILE, lambda: [show_panels(out, ratio)]),
    ]


def list_commands(options: DemoOptions) -> list[tuple[str, str, str, list[str]]]:
    """The commands of the demonstration: a title, the folder, a file that is there once it is done,
    and what follows `mjp`, but for the folder."""
    seed, ratio = str(options.seed), f"{options.ratio:g}"
    common = ["--seed", seed, "--device", "cpu"]
    commands = []
    for data, changes in TRAINING.items():
        for variant in MODELS:
            words = ["train", data, "--variant", variant, "--run.seed", seed, "--run.device", "cpu"]
            words += [*changes, *(["--mjp.ratio", ratio] if variant == "J" else [])]
            title = f"training on {data}, {'without' if variant == 'A' else 'with'} MJP"
            commands.append((title, f"train/{data}-{variant}", "final/config.json", words))
    for data in TRAINING:
        words = ["eval", "accuracy", "--model", *_models(options, data), "--data", data]
        words += ["--images", str(IMAGES), "--draws", "2", "--crop", "1", "--workers", "0"]
        commands.append(
            (f"accuracy and jigsaws on {data}", f"eval/{data}", RECORDS, [*words, *common])
        )
    words = ["probe", "positions", "--model", *_models(options, "positions"), "--no-umap"]
    title = "what the position embeddings learned"
    commands.append((title, "probe/positions", RECORDS, [*words, "--seed", seed]))
    plain, mjp = _models(options, "positions")
    ratios = [f"mjp={share}" for share in dict.fromkeys(("0.03", "0.09", ratio))]
    pretrained = [f"{label}=pretrained:{name}" for label, name in PRETRAINED.items()]
    attacked: dict[str, tuple[list[str], list[str], str]] = {
        "A": ([plain], ["none", f"shuffle={ratio}", "unshared"], "the plain ViT"),
        "J": ([mjp], ["none", *ratios, "unshared"], "the ViT with MJP"),
        "trained": (
            [*pretrained, "--size", "48", "48"],  # There closed forms are determined.
            ["none", *dict.fromkeys((ratios[0], ratios[-1]))],
            "trained models that come with the package",
        ),
    }
    for name, (models, defences, whose) in attacked.items():
        words = ["audit", "--model", *models, "--defences", *defences, "--most", str(PHOTOGRAPHS)]
        words += ["--images", "photographs" if options.image is None else str(options.image)]
        title = f"attacking the gradients of {whose}"
        commands.append((title, f"audit/{name}", "report.html", [*words, "--resume", *common]))
    return commands


def clear(out: Path) -> None:
    """Removes what a demonstration wrote, and nothing else; nothing where there was none."""
    from mjp.core.records import read_records

    if not any(record.kind == STAGE for record in read_records(out)):
        return
    for _, folder, _, _ in list_commands(DemoOptions(out=out)):
        shutil.rmtree(out / folder, ignore_errors=True)
        with suppress(OSError):  # Other things of the person's may be beside it.
            (out / folder).parent.rmdir()
    for name in FILES:
        (out / name).unlink(missing_ok=True)


def _models(options: DemoOptions, data: str) -> list[str]:
    return [
        f"{label}={options.out}/train/{data}-{variant}/final" for variant, label in MODELS.items()
    ]


def _conditions(options: DemoOptions) -> dict[str, Scalar]:
    image = options.image
    return {
        "ratio": options.ratio,
        "seed": options.seed,
        "image": None if image is None else f"{image.resolve()} {image.stat().st_mtime_ns}",
    }


def _check_same(run: "Run", conditions: dict[str, Scalar]) -> None:
    """Raises where the folder holds a demonstration with other options or of other versions."""
    where = run.environment()
    now = {**conditions, "mjp": where["mjp"], "torch": where["torch"]}
    for record in run.known.values():
        changed = [name for name in now if record.conditions.get(name) != now[name]]
        if record.kind == STAGE and changed:
            before = ", ".join(f"{name} {record.conditions.get(name)}" for name in changed)
            raise ConfigError(
                f"{run.out} holds a demonstration with {before}; start over with --fresh, or "
                "choose another --out"
            )


def _carry_out(words: list[str], folder: Path) -> list[Record]:
    """Carries out a command in this process; a training that was stopped goes on."""
    from mjp.catalog import verbs
    from mjp.parsing import parse

    resume = words[0] == "train" and (folder / "recipe.toml").is_file()
    more = ["--resume"] if resume else []
    verb, options = parse([*words, *more, "--out", str(folder)], verbs())
    verb.run(options)
    return []


@contextmanager
def _logged(title: str, out: Path) -> Iterator[None]:
    """What is printed inside goes to a file; how far it is stays on the screen."""
    try:
        with (out / "log.txt").open("a", encoding="utf-8") as log, redirect_stdout(log):
            print(f"\n== {title}", flush=True)
            yield
    except StoppedError as error:
        raise StoppedError(
            f"stopped; what is finished is kept in {out}: go on with the same command",
            error.number,
        ) from error


VERBS = (Verb("demo", DemoOptions, run_demo),)
