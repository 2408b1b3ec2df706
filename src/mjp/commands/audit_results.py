"""What an audit prints and draws."""

import sys
from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from mjp.commands.audit_options import AuditOptions
from mjp.commands.evaluating import label_of, numbers
from mjp.commands.terminal import results
from mjp.core.records import Record, Scalar
from mjp.report.audit_figures import draw_audit
from mjp.report.audit_page import write_page
from mjp.report.paper import PRIVACY, PRIVACY_RATIO
from mjp.report.reading import with_interval

SETTINGS = (
    ("a", "none", "", "φ(∇M(x), x)"),
    ("b", f"mjp={PRIVACY_RATIO:g}", "client_", "φ(∇M(x̃), x̃)"),
    ("c", f"mjp={PRIVACY_RATIO:g}", "", "φ(∇M(x̃), x)"),
)
"""The paper's settings: name, defence, what is compared with, in its notation."""


def present(
    records: list[Record],
    names: tuple[str, ...],
    options: AuditOptions,
    command: str,
    notes: tuple[str, ...],
    first_line: int,
) -> None:
    """Tables, or records for `--json`; figures; the report.

    Args:
        first_line: of the records in their file.
    """
    console = results()
    if options.json:
        for record in records:
            print(record.to_json(), flush=True)
    else:
        for table in (main_table(records), paper_table(records), cost_table(records)):
            if table.row_count:
                console.print(table)
        for line in verdicts(records):
            console.print(line, markup=False, highlight=False)
    for note in notes:
        print(f"note: {note}", file=sys.stderr if options.json else sys.stdout)
    figures = draw_audit(records, names, options.out, options.out)
    page = write_page(records, figures, options.out, command=command, first_line=first_line)
    if not options.json:
        for path in figures.values():
            print(f"figure: {path}")
        print(f"records: {options.out / 'records.jsonl'}")
        print(f"report: {page}")


def main_table(records: Iterable[Record]) -> Table:
    """A row for each model, defence and attack."""
    found = [one for one in records if one.kind == "audit"]
    first = found[0]
    guess = max(_number(first, "baseline_mean_psnr"), _number(first, "baseline_colour_psnr"))
    several = len({label_of(one) for one in found}) > 1
    whose = "" if several else f"{label_of(first)}: "
    table = Table(
        title=f"{whose}what comes back of {first.values['images']} pictures, dB against the "
        f"original; 95 % intervals; a plain guess gives {guess:.1f}"
    )
    if several:
        table.add_column("model")
    longest = max(len(str(one.conditions["defence"])) for one in found)
    table.add_column("defence", min_width=min(longest, 20))
    table.add_column("attack", no_wrap=True)
    numbers(table, "PSNR", "lowest – highest", "shown | masked", "SSIM", "found in gallery")
    table.add_column("verdict")
    for column in table.columns:
        column.overflow = "fold"  # Narrow terminals get taller rows, and all of every number.
    before = None
    for record in found:
        key = (label_of(record), str(record.conditions["defence"]))
        if before not in (None, key):
            table.add_section()
        same = before == key
        model = "" if before is not None and before[0] == key[0] else key[0]
        names = (model,) if several else ()
        table.add_row(*names, "" if same else escape(key[1]), *_cells(record))
        before = key
    return table


def _cells(record: Record) -> tuple[str, ...]:
    values = record.values
    attack = str(record.conditions["attack"])
    if not values["applied"]:
        return attack, "–", "", "", "", "", "does not apply"
    split = ""
    if values.get("psnr_unmasked") is not None:
        split = f"{values['psnr_unmasked']:.1f} | {values['psnr_masked']:.1f}"
    return (
        attack,
        with_interval(values, "psnr"),
        f"{values['psnr_lowest']:.1f}–{values['psnr_highest']:.1f}",
        split,
        f"{values['ssim']:.3f}",
        f"{100 * _number(record, 'identified_pixels'):.0f} %",
        str(values["level"]),
    )


def paper_table(records: list[Record]) -> Table:
    """Our numbers in the form of the paper's table, and the paper's."""
    table = Table(title="the paper's settings: ours first, then the paper's own numbers")
    for column in ("set.", "model", "attack"):
        table.add_column(column, overflow="fold")
    numbers(table, "acc", "MSE ↑", "FFT2D ↑", "PSNR ↓", "SSIM ↓", "LPIPS ↑")
    names = ("mse", "fft2d", "psnr", "ssim", "lpips")
    top1 = {
        (r.conditions["model"], r.conditions["defence"]): r.values.get("top1")
        for r in records
        if r.kind == "audit accuracy"
    }
    for setting, defence, prefix, _ in SETTINGS:
        for record in records:
            ours = record.kind == "audit" and record.conditions["defence"] == defence
            if not ours or not record.values["applied"]:
                continue
            found = [_four(record.values.get(f"{prefix}{name}"), name) for name in names]
            accuracy = top1.get((record.conditions["model"], defence))
            shown = f"{accuracy:.1f}" if isinstance(accuracy, float) else "–"
            label = label_of(record)
            table.add_row(setting, label, str(record.conditions["attack"]), shown, *found)
    if table.row_count:
        table.add_section()
        for leak in PRIVACY:
            found = [_four(getattr(leak, name), name) for name in names]
            table.add_row(leak.setting, leak.model, "paper: APRIL", f"{leak.accuracy:.1f}", *found)
    return table


def cost_table(records: Iterable[Record]) -> Table:
    """What each defence costs: accuracy on what the model is fed, direction of the gradient, ε."""
    table = Table(title="what the defences cost")
    for column in ("model", "defence"):
        table.add_column(column)
    numbers(
        table, "top-1, %", "cosine of what is sent with the gradient", "ε of one update, δ = 1e-5"
    )
    for record in records:
        if record.kind == "audit accuracy":
            epsilon = record.values.get("epsilon")
            fidelity = record.values.get("fidelity")
            table.add_row(
                label_of(record),
                escape(str(record.conditions["defence"])),
                with_interval(record.values, "top1"),
                f"{fidelity:.4f}" if isinstance(fidelity, float) else "–",
                f"{epsilon:.1f}" if isinstance(epsilon, float) else "∞",
            )
    return table


def verdicts(records: Iterable[Record]) -> list[str]:
    """For each model and defence, what the strongest attack gets, in words."""
    best: dict[tuple[Scalar, Scalar], Record] = {}
    for record in records:
        if record.kind != "audit":
            continue
        key = (record.conditions["model"], record.conditions["defence"])
        if key not in best or _strength(record) > _strength(best[key]):
            best[key] = record
    return [
        f"{model}, {record.conditions['defence_title']}: {record.values['verdict']}"
        f" ({record.conditions['attack']})"
        for (model, _), record in best.items()
    ]


def _strength(record: Record) -> float:
    own, client = record.values.get("psnr"), record.values.get("client_psnr")
    return max(float(str(one)) if one is not None else -1.0 for one in (own, client))


def _number(record: Record, name: str) -> float:
    return float(str(record.values[name]))


def _four(value: Scalar, name: str) -> str:
    if not isinstance(value, float):
        return "–"
    return f"{value:.2f}" if name == "psnr" else f"{value:.4f}"
