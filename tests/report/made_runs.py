"""Folders as the verbs leave them, made up: small, complete, and without any model."""

from PIL import Image

from mjp.core.records import Record, append_records
from mjp.privacy.pictures import draw_grids, picture_name

RATIOS = (0.03, 0.27, 0.5)


def interval(name, value, spread=1.0):
    return {name: value, f"{name}_low": value - spread, f"{name}_high": value + spread}


def write(folder, records):
    folder.mkdir(parents=True, exist_ok=True)
    append_records(folder / "records.jsonl", records)
    return folder


def training(folder, epochs=3, asked=3, ratio=0.27):
    start = {"model.name": "deit_tiny_patch16_224", "data.source": "digits", "run.epochs": asked}
    start |= {"mjp.ratio": ratio, "mjp.localization": "mlp" if ratio else None}
    records = [Record("train start", start, {"parameters": 1000})]
    for epoch in range(1, epochs + 1):
        values = {"classification": 2.0 / epoch, "val_top1": 30.5 * epoch}
        values["localization"] = 1.0 / epoch if ratio else 0.0
        records.append(Record("train epoch", {"epoch": epoch}, values))
        records.append(Record("train timing", {"epoch": epoch}, {"seconds": 1.5}))
    if epochs == asked:
        records.append(Record("train end", {}, {"last_top1": 91.5, "best_top1": 92.25}))
        records.append(Record("train timing", {}, {"seconds": 75.0}))
    return write(folder, records)


def evaluation(folder, models=("A", "J"), data="digits (val)", weights=None, **more):
    records = []
    for place, label in enumerate(models):
        facts = {"model": label, "data": data, "parameters": 12345, "jigsaw": "pixels"}
        facts |= {"weights": weights or f"w{label}", **more}
        top = interval("top1", 90.5 + place) | interval("top5", 99.25) | {"images": 359}
        records.append(Record("eval accuracy", facts, top))
        for ratio in RATIOS:
            values = interval("accuracy", 80.0 + place) | interval("consistency", 85.5)
            values |= interval("diff_norm", 1.25, 0.25) | {"patches_moved": 8, "patches": 16}
            records.append(Record("eval jigsaw", {**facts, "ratio": ratio, "draws": 2}, values))
    for other in models[1:]:
        for ratio in RATIOS:
            told = {"model": other, "than": models[0], "value": "consistency", "data": data}
            found = interval("difference", 3.5, 1.0 if ratio > 0.1 else 9.0)
            records.append(Record("eval difference", {**told, "ratio": ratio}, found))
    return write(folder, records)


def robustness(folder, label="A"):
    facts = {"model": label, "data": "made", "weights": "w", "imagenet": False}
    fog = interval("error", 55.5) | {"relative_to_alexnet": None}
    fog |= {f"error_{severity}": 10.0 * severity for severity in range(1, 6)}
    natural = interval("accuracy", 20.5) | interval("aurra", 25.5)
    natural |= interval("calibration_error", 11.5) | {"images": 7500}
    odd = interval("aupr", 20.5) | interval("auroc", 60.5) | interval("fpr95", 80.5)
    records = [
        Record("eval corruption", {**facts, "corruption": "fog"}, fog),
        Record("eval corruption summary", facts, {"clean_error": 30.5, "mean_error": 55.5}),
        Record("eval imagenet-a", facts, natural),
        Record("eval imagenet-o", facts, odd | {"outliers": 2000, "inliers": 9000}),
    ]
    return write(folder, records)


def probe(folder, label="A"):
    facts = {"model": label, "rows": 6, "cols": 4, "dim": 32, "weights": f"w{label}"}
    values = {"mae_1d": 3.125, "mae_1d_std": 0.25, "mae_2d": 0.5, "mae_2d_std": 0.125}
    values |= {"mae_row": 0.375, "mae_col": 0.625, "effective_rank": 12.5}
    values |= {"mae_1d_of_the_middle": 6.0, "mae_2d_of_the_middle": 1.25}
    attention = {"model": label, "image": "cat", "weights": f"w{label}"}
    seen = {"heads": 3, "attention_on_patches": 0.875}
    write(
        folder,
        [Record("probe positions", facts, values), Record("probe attention", attention, seen)],
    )
    plain = '<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40"><rect width="9"/></svg>'
    (folder / "pca-2d.svg").write_text(plain)
    Image.new("RGB", (60, 30), "navy").save(folder / "attention.png")


def audit(folder, label="A"):
    records, facts = [], {"model": label, "weights": "0" * 8, "data": "2 pictures", "seed": 0}
    for defence, attack, psnr in (
        ("none", "patch_solve", 85.5),
        ("mjp=0.27", "patch_solve", 9.5),
        ("mjp=0.27", "adaptive_solve", 24.5),
    ):
        told = {**facts, "defence": defence, "defence_title": f"defence {defence}"}
        told |= {"attack": attack, "knows_defence": attack == "adaptive_solve"}
        level = "recovered" if psnr > 30 else "recognisable" if psnr > 20 else "failed"
        values = interval("psnr", psnr) | interval("ssim", 0.5, 0.1)
        values |= {"psnr_lowest": psnr - 2, "psnr_highest": psnr + 2, "images": 2, "applied": 2}
        values |= {"baseline_mean_psnr": 11.0, "baseline_colour_psnr": 13.0, "gallery": 2}
        values |= {"identified_pixels": 1.0, "level": level, "seconds": 0.25}
        records.append(Record("audit", told, values))
        for number, name in enumerate(("cat", "dog")):
            own = {**told, "image": name, "number": number}
            records.append(Record("audit image", own, {"psnr": psnr, "masked_patches": 6}))
            for what in ("original", "client", attack):
                path = folder / picture_name(told, what, number)
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (24, 16), (90 * number, 80, 200)).save(path)
    draw_grids(records, folder)
    return write(folder, records)


def everything(folder):
    """One of each."""
    training(folder / "train" / "A", ratio=0.0)
    training(folder / "train" / "J")
    for make in (evaluation, robustness, probe, audit):
        make(folder / make.__name__)
    return folder
