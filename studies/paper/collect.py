"""One small file of records from the folders of a study, without a path in it: records.jsonl.

python studies/paper/collect.py runs/study-paper --into studies/paper/records.jsonl
"""

import argparse
import json
import statistics
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RUNS = Path(__file__).parent / "runs.toml"
FACTS = {
    "architecture": "model.name",
    "arguments": "model.arguments",
    "ratio": "mjp.ratio",
    "probability": "mjp.probability",
    "positions": "mjp.positions",
    "localization": "mjp.localization",
    "epochs": "run.epochs",
    "warmup_epochs": "run.warmup_epochs",
    "batch": "run.batch",
    "precision": "run.precision",
    "init": "init",
    "mjp": "mjp",
    "torch": "torch",
    "python": "python",
}
"""Facts of a run, and what they are called where training writes its recipe down."""
KINDS = {
    "eval accuracy": "study accuracy",
    "eval jigsaw": "study jigsaw",
    "eval corruption summary": "study corruption summary",
    "probe positions": "study positions",
    "audit": "study leak",
}
"""Records of evaluations that are taken over, and as what."""
KEPT = ("precision", "image_size", "ratio", "draws", "jigsaw", "among", "attack", "defence")


def records_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """The records of these kinds in a folder; none where it has none."""
    path = folder / "records.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [one for one in map(json.loads, lines) if one["kind"] in kinds]


def training(folder: Path, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """How a run was trained, and its accuracy after each epoch."""
    train = folder / "train"
    start = records_of(train, "train start")[-1]
    facts = {name: start["conditions"].get(there) for name, there in FACTS.items()}
    sides = start["conditions"]["model.image_size"]
    facts["image_size"] = "x".join(
        map(str, json.loads(str(sides).replace("(", "[").replace(")", "]")))
    )
    facts["init"] = facts["init"] and Path(str(facts["init"])).name
    facts |= {name: start["values"][name] for name in ("train_images", "val_images")}
    facts["hardware"] = start["values"]["device"]
    facts["parallel"] = json.loads((train / "done.json").read_text(encoding="utf-8"))["parallel"]
    timings = [one for one in records_of(train, "train timing") if "epoch" in one["conditions"]]
    seconds = {one["conditions"]["epoch"]: one["values"]["seconds"] for one in timings}
    steady = [one for one in timings if one["conditions"]["epoch"] > max(1, facts["warmup_epochs"])]
    end = records_of(train, "train end")[-1]["values"]
    values = {
        "top1": end["last_top1"],
        "best_top1": end["best_top1"],
        "parameters": start["values"]["parameters"],
        "seconds": sum(seconds.values()),
    }
    for name, there in (("epoch_seconds", "seconds"), ("images_per_second", "images_per_second")):
        values[name] = statistics.median(one["values"][there] for one in steady) if steady else None
    yield {"kind": "study run", "conditions": {**about, **facts}, "values": values}
    own = {name: about[name] for name in ("study", "run", "seed")}
    for one in records_of(train, "train epoch"):
        if one["values"].get("val_top1") is not None:
            told = {**own, "epoch": one["conditions"]["epoch"]}
            yield {
                "kind": "study epoch",
                "conditions": told,
                "values": {"top1": one["values"]["val_top1"]},
            }


def evaluation(folder: Path, own: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What an evaluation measured."""
    for one in records_of(folder, *KINDS):
        facts = {name: one["conditions"][name] for name in KEPT if name in one["conditions"]}
        facts |= {"evaluation": folder.name, "images": one["values"].get("images")}
        values = {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in one["values"].items()
            if value is not None and name not in ("images", "reason", "verdict")
        }
        yield {"kind": KINDS[one["kind"]], "conditions": {**own, **facts}, "values": values}


def compared(folder: Path, seed: int, study: str) -> Iterator[dict[str, Any]]:
    """What models have more than others, image by image, where they were evaluated together."""
    for one in records_of(folder, "eval difference"):
        about = one["conditions"]
        facts = {"study": study, "run": about["model"], "than": about["than"], "seed": seed}
        facts |= {"evaluation": folder.name, "value": about["value"], "ratio": about.get("ratio")}
        values = {name: round(value, 4) for name, value in one["values"].items()}
        yield {"kind": "study difference", "conditions": facts, "values": values}


def collect(root: Path, file: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The records of all runs that are done."""
    for entry in file["runs"]:
        for seed in entry.get("seeds", [0]):
            folder = root / f"{entry['name']}-{seed}"
            own = {"study": file["name"], "run": entry["name"], "seed": seed}
            about = {**own, "label": entry.get("label", entry["name"])}
            about |= {"variant": entry.get("variant"), "alone": entry.get("alone", False)}
            if (folder / "train" / "done.json").is_file():
                yield from training(folder, about)
            elif "model" in entry:
                facts = {"init": Path(entry["model"].partition("@")[2] or entry["model"]).name}
                yield {
                    "kind": "study run",
                    "conditions": {**about, **facts, "epochs": 0},
                    "values": {},
                }
            for name in entry.get("evaluations", ()):
                if not (folder / name / "done.json").is_file():
                    continue
                if "models" in entry:
                    yield from compared(folder / name, seed, file["name"])
                else:
                    yield from evaluation(folder / name, own)


def main() -> None:
    """Writes the records of a study's folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path, help="what mjp study --out was given")
    parser.add_argument("--file", type=Path, default=RUNS)
    parser.add_argument("--into", type=Path, default=Path("records.jsonl"))
    options = parser.parse_args()
    file = tomllib.loads(options.file.read_text(encoding="utf-8"))
    lines = [json.dumps(one, ensure_ascii=False) for one in collect(options.root, file)]
    options.into.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
