"""What audits look like: columns, figures and fixed texts. Imports no torch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mjp.core.records import Record, Scalar
from mjp.privacy import assessment
from mjp.report.table import (
    Column,
    Figure,
    FigureFile,
    Joined,
    Section,
    Table,
    filled_in,
    number,
    text_of,
)

WORDS = {
    "recovered": "The picture comes back.",
    "recognisable": "A recognisable picture comes back.",
    "traces": "Traces of the picture come back.",
    "failed": "The attacks tried got nothing; that does not prove the picture private.",
    "does not apply": "No attack tried applies, so nothing was measured.",
}
"""What a level means of the strongest of the attacks that were tried."""
PARTS = {
    "unmasked": "{psnr_unmasked} dB on the patches left alone",
    "shuffled": "{client_psnr} dB against the picture as the model was fed it",
}
"""Where something was found although the whole picture is no better than a guess."""
DOES_NOT_COUNT = {
    "untried": "does not count: this attack was not tried without a defence",
    "refused": "does not count: without a defence, this attack does not apply",
    "weak": "does not count: without a defence, this attack does not beat a trivial guess either",
}
"""Why a number says nothing about the defence."""
FAILED = "below the trivial guess: the solver failed, which is no proof of privacy"
Draw = Callable[[Sequence[Record], Path], list[Path]]


def _note(record: Record) -> str:
    """What is to be known of a number, in fixed texts."""
    if not assessment.applies(record):
        return ""
    notes = []
    part, why = text_of(record.values, "part"), text_of(record.values, "why")
    if part:
        notes.append(filled_in(PARTS[part], record))
    elif text_of(record.values, "level") == "failed":
        notes.append(FAILED)
    if why:
        notes.append(DOES_NOT_COUNT[why])
    return "; ".join(filter(None, [*notes, text_of(record.values, "reason")]))


def _in_words(record: Record) -> str:
    """What the level means, and what came back better than the whole picture."""
    texts = [WORDS[text_of(record.values, "level")]]
    psnr = number(record.values, "psnr")
    for part, name in (("unmasked", "psnr_unmasked"), ("shuffled", "client_psnr")):
        other = number(record.values, name)
        if psnr is not None and other is not None and other > psnr + assessment.ELSEWHERE:
            texts.append(filled_in(PARTS[part], record) + ".")
    return " ".join(texts)


def _shown(pattern: str, *names: str) -> Callable[[Record], Scalar]:
    """What writes numbers of a record into a pattern, where it has all of them."""

    def look(record: Record) -> Scalar:
        values = [number(record.values, name) for name in names]
        return None if None in values else pattern.format(*values).replace("%", " %")

    return look


def _enough(record: Record) -> Scalar:
    rank, needed = (number(record.values, name) for name in ("rank", "rank_needed"))
    if rank is None or needed is None:
        return None
    return "yes" if rank >= needed else "no: part of the picture is not determined"


def _accuracy(record: Record) -> Scalar:
    """With a star where it is not that of a model trained under the defence."""
    top1 = number(record.values, "accuracy")
    return None if top1 is None else f"{top1:.1f}{'' if record.values.get('measured') else '*'}"


MODEL = Column("Model", "model", numeric=False)
ATTACK = Column("Attack", "attack", numeric=False)
DEFENCE = Column("Defence", "defence_title", numeric=False)
LEVEL = Column("Level", "level", numeric=False, look="badge")
KNOWS = Column("Knows the defence", "knows_defence", numeric=False)
PSNR = Column("PSNR, dB [95 %]", "psnr", digits=1, interval=1, look="bar", full=60.0)
RANGE = Column("Lowest–highest", _shown("{:.1f}–{:.1f}", "psnr_lowest", "psnr_highest"))
UNMASKED = Column("PSNR, patches left alone", "psnr_unmasked", digits=1, optional=True)
FED = Column("PSNR against what the model was fed", "client_psnr", digits=1, optional=True)
IDENTIFIED = Column("Identified", _shown("{:.0%}", "identified_pixels"), optional=True)

STRONGEST = Table(
    "audit",
    "{model}: the attack that got the most, defence by defence",
    (
        DEFENCE,
        LEVEL,
        Column("In words", _in_words, numeric=False, look="wide"),
        ATTACK,
        KNOWS,
        PSNR,
        RANGE,
        Column("Top-1 accuracy, %", "top1", digits=1, optional=True),
    ),
    note="An attack that fails proves nothing about the next one. A level here is of the attacks "
    "that were tried, with the effort they were given.",
    join=assessment.strongest,
    per="model",
    glance="{model}, {defence_title}: {verdict} ({attack})",
)
ATTACKED = Table(
    "audit",
    "{model}: every attack; a trivial guess scores {baseline} dB; a gallery of {gallery} pictures",
    (
        ATTACK,
        LEVEL,
        Column("Applies to", _shown("{:.0f} of {:.0f}", "applied", "images")),
        PSNR,
        RANGE,
        Column("SSIM", "ssim"),
        IDENTIFIED,
        Column("By features", _shown("{:.0%}", "identified_features"), optional=True),
        Column("To be known", _note, numeric=False, look="wide"),
    ),
    folded_from=1000,
    join=assessment.assessed,
    per="model",
    group="defence_title",
    counts="counts",
    note="Identified: how often the right picture was picked out of a gallery by what the attack "
    "recovered. Grey rows do not count for the defence: the same attack, undefended, does not "
    "beat a trivial guess on this model, or was not tried.",
)
SPLIT = Table(
    "audit",
    "PSNR of masked and unmasked patches",
    (
        MODEL,
        DEFENCE,
        ATTACK,
        Column("Masked patches", "masked_patches", digits=0),
        Column("Mask read off exactly", _shown("{:.0%}", "mask_recovered")),
        UNMASKED,
        Column("PSNR, masked patches", "psnr_masked", digits=1),
        Column("PSNR, whole picture", "psnr", digits=1),
        FED,
    ),
    join=assessment.split_by_mask,
)
COST = Table(
    "audit accuracy",
    "What the defences cost {model}",
    (
        DEFENCE,
        Column("Top-1, % [95 %]", "top1", digits=1, interval=1, optional=True),
        Column("Images", "accuracy_images", optional=True),
        Column("Fidelity of the gradient", "fidelity", digits=3),
        Column("ε", _shown("{:.3g}", "epsilon"), optional=True),
        Column("Strongest attack, dB", "psnr", digits=1),
        ATTACK,
        Column("Accuracy", "accuracy_note", numeric=False, look="wide"),
    ),
    join=assessment.costs,
    per="model",
    note="Fidelity is the cosine between what was sent and the gradient of what the model was fed: "
    "1 means that the defence takes nothing away from the gradient itself. ε is there for "
    "differential privacy only.",
)
PAPERS = Table(
    "audit",
    "The paper’s table, with our rows and its own",
    (
        MODEL,
        Column("Setting", "setting", numeric=False),
        ATTACK,
        Column("Acc", _accuracy),
        Column("MSE", "mse", digits=4),
        Column("FFT2D", "fft2d", digits=4),
        Column("PSNR", "psnr"),
        Column("SSIM", "ssim", digits=4),
        Column("LPIPS", "lpips", digits=4),
    ),
    folded_from=1000,
    join=assessment.papers_rows,
    group="of",
    note="* Accuracy of the model as it is, not under the defence.",
)
PREFLIGHT = Table(
    "audit",
    "Preflight of {model}",
    (
        DEFENCE,
        Column("Rank of needed", _shown("{:.0f} of {:.0f}", "rank", "rank_needed")),
        Column("Enough?", _enough, numeric=False),
        Column("Condition number, median", _shown("{:.3g}", "condition")),
        Column("Patches that the jigsaw moved", "masked_patches", digits=0),
        Column("Mask read off exactly", _shown("{:.0%}", "mask_recovered")),
    ),
    join=assessment.preflights,
    per="model",
)
REFUSALS = Table(
    "audit",
    "Attacks that do not apply, and why",
    (
        MODEL,
        ATTACK,
        Column("Why", "reason", numeric=False, look="wide"),
        Column("Under", "defence", numeric=False),
    ),
    join=assessment.refusals,
)
METHODS = Table(
    "audit",
    "The attacks",
    (
        ATTACK,
        Column("What it does", "attack_about", numeric=False, look="wide"),
        Column("Kind", "attack_kind", numeric=False),
        KNOWS,
        Column("Seconds an image, at most", _shown("{:.3g}", "seconds")),
    ),
    join=assessment.attacks,
)
CONDITIONS = Table(
    "audit",
    "Conditions and versions",
    (Column("Condition", "name", numeric=False), Column("Value", "value", numeric=False)),
    folded_from=1000,
    join=assessment.common_conditions,
)


def _drawing(figure: str, join: Callable[[Sequence[Record]], Joined]) -> Draw:
    """What draws a figure of joined records; matplotlib is loaded only then."""

    def draw(records: Sequence[Record], out: Path) -> list[Path]:
        from mjp.report import audit_figures

        draw_rows: Draw = getattr(audit_figures, f"draw_{figure}")
        return draw_rows([row for row, _ in join(records)], out)

    return draw


FIGURES = {
    "defences": _drawing("defences", assessment.assessed),
    "tradeoff": _drawing("tradeoff", assessment.costs),
    "ratio": _drawing("ratios", assessment.assessed),
}
"""What an audit draws into its folder, by the names of the files."""


def _section(
    id_: str, title: str, *tables: Table, figure: Figure | None = None, **more: Any
) -> Section:
    figures = () if figure is None else (figure,)
    more |= {"figures": figures, "figures_first": True, "also": frozenset({"audit"})}
    return Section(id_, "Privacy audit", title, tables, **more)


SECTIONS = (
    _section("verdict", "The verdict", STRONGEST),
    _section(
        "pictures",
        "What the attackers see",
        files=(
            FigureFile(
                "grid-*.png",
                "Grid {name} of pictures.",
                most=24,
                alt="Rows of pictures, each with the original, what the model was fed, and what "
                "each attack made of the gradient, grid {name}",
            ),
        ),
        intro="Each row is one picture: as it was, as the model was fed it, and as each attack "
        "rebuilt it from the gradient alone. PSNR in dB stands below; higher means closer to the "
        "original.",
    ),
    _section(
        "numbers",
        "Every attack on every defence",
        ATTACKED,
        figure=Figure(
            FIGURES["defences"],
            "Bars of the PSNR that each attack reaches under each defence",
            "How close each attack comes to the original, defence by defence. Longer bars are "
            "worse for the person in the picture; pale ones say nothing for the defence.",
        ),
        intro="PSNR is against the original picture: the mean over images with its 95 % interval, "
        "then the lowest and the highest image. The bar ends at 60 dB, beyond which no eye sees a "
        "difference.",
    ),
    _section(
        "split",
        "Masked and unmasked patches apart",
        SPLIT,
        figure=Figure(
            FIGURES["ratio"],
            "PSNR of each attack over the share of patches that MJP masks",
            "What each attack gets over the share of patches that are masked; dashed, of the "
            "patches left alone.",
        ),
        intro="MJP masks some patches and moves them about. The mask shows in the gradient, "
        "because masked positions get exactly none; an attacker who knows this solves for the "
        "other patches.",
    ),
    _section(
        "cost",
        "What the defences cost",
        COST,
        figure=Figure(
            FIGURES["tradeoff"],
            "PSNR of the strongest attack on each defence against top-1 accuracy",
            "What each defence leaks and what it costs. Low and to the right is where one "
            "would like to be, but low may also only mean that the attacks tried are weak.",
        ),
    ),
    _section("paper", "In the form of the paper’s table", PAPERS, template="audit_paper.html"),
    _section(
        "preflight",
        "What the gradients show before any attack",
        PREFLIGHT,
        REFUSALS,
        intro="Before any attack one can see from the shared gradients alone whether an attack has "
        "enough equations (the rank), how much rounding hurts it (the condition number), and "
        "whether rows of zeros show a mask.",
    ),
    _section(
        "method",
        "What was attacked, and how it was measured",
        METHODS,
        template="audit_method.html",
    ),
    _section("glossary", "The words used here", template="audit_glossary.html"),
    _section("conditions", "Conditions of the audit", CONDITIONS),
)
