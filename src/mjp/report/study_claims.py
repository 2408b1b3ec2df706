"""What the paper claims, table by table, and which comparisons of a study decide it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mjp.report import paper
from mjp.report.study import SECONDS, Quantity, Study, StudyRun
from mjp.report.study_reading import levels
from mjp.report.study_tables import (
    ADAPTIVE_SOLVE,
    MAE,
    MEAN_ERROR,
    MOVED,
    PATCH_SOLVE,
    SAME,
    SAME_LEAST,
    TOP1,
    papers_row,
)

KEPT = 1.0
"""Points of accuracy that may be lost where a claim says that it is kept."""
KEPT_OVER_RATIOS = 0.5
AIM_PERCENT = 1.0
"""How much longer we want an epoch with MJP to take at most."""


@dataclass(frozen=True)
class Part:
    """A comparison that decides on a claim.

    Args:
        side: on which side of the bound the difference should lie.
        bound: 0 for a gain or a loss; less for what may be lost.
    """

    run: str
    than: str
    quantity: Quantity
    side: Literal["above", "below"]
    bound: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Whether it says only that no more than so much is lost, not that anything changes."""
        return self.side == "above" and self.bound < 0


@dataclass(frozen=True)
class Claim:
    """What is said, by the paper or by us, and what decides on it.

    Args:
        trend: differences from the run without a jigsaw should go this way from one γ to the next;
            the last part compares the ends.
        ours: whether it is our own question.
    """

    text: str
    parts: tuple[Part, ...]
    trend: Literal["", "rise", "fall"] = ""
    ours: bool = False


def claims_of(study: Study, table: str) -> list[Claim]:
    """The claims on a table; none for a table that the paper has nothing on."""
    make: dict[str, Callable[[Study], list[Claim]]] = {
        "ablation": lambda study: _ablation(),
        "gamma": _gamma,
        "backbones": _backbones,
        "robustness": _robustness,
        "finetune": _finetune,
        "cost": _cost,
        "convergence": _convergence,
    }
    return make[table](study) if table in make and study.rows(table) else []


def _more(run: str, than: str, quantity: Quantity) -> Part:
    return Part(run, than, quantity, "above")


def _less(run: str, than: str, quantity: Quantity) -> Part:
    return Part(run, than, quantity, "below")


def _keeps(run: str, than: str, allowed: float = KEPT) -> Part:
    return Part(run, than, TOP1, "above", -allowed)


def _ablation() -> list[Claim]:
    rows = paper.ABLATION

    def top1(run: str, than: str) -> str:
        return f"{rows[run].top1 - rows[than].top1:+.1f}"

    def same(run: str, than: str) -> str:
        return f"{rows[run].consistency - rows[than].consistency:+.1f}"

    return [
        Claim(
            f"Without position embeddings (B), accuracy is lost: {top1('B', 'A')} points.",
            (_less("B", "A", TOP1),),
        ),
        Claim(
            f"Shuffling pixels and patches (C) loses the most: {top1('C', 'A')} points.",
            (_less("C", "A", TOP1), _less("C", "B", TOP1), _less("C", "E", TOP1)),
        ),
        Claim(
            f"Localization alone (D) gains accuracy: {top1('D', 'A')} points.",
            (_more("D", "A", TOP1),),
        ),
        Claim(
            f"Jigsaws alone (E) lose accuracy, {top1('E', 'A')} points, and gain consistency, "
            f"{same('E', 'A')}.",
            (_less("E", "A", TOP1), _more("E", "A", SAME)),
        ),
        Claim(
            f"Unknown positions (G) keep the accuracy of A ({top1('G', 'A')}; here: no more than "
            f"{KEPT:g} point lost) and gain consistency over E: {same('G', 'E')}.",
            (_keeps("G", "A"), _more("G", "E", SAME)),
        ),
        Claim(
            f"Localization on top (J, MJP) gains accuracy over G, {top1('J', 'G')}, and over A, "
            f"{top1('J', 'A')}.",
            (_more("J", "G", TOP1), _more("J", "A", TOP1)),
        ),
        Claim(
            "Localization lowers consistency (in the paper’s table: "
            f"{same('D', 'A')} in D against A, {same('J', 'G')} in J against G).",
            (_less("D", "A", SAME), _less("J", "G", SAME)),
            ours=True,
        ),
        Claim(
            "MJP (J) is more consistent than A also where as few patches move as in its training: "
            f"{SAME_LEAST.ratio:g} of them.",
            (_more("J", "A", SAME_LEAST),),
            ours=True,
        ),
    ]


def _gamma(study: Study) -> list[Claim]:
    first, last = paper.ABLATION["D"], paper.RATIOS[max(paper.RATIOS)]
    plain, linear, mlp = (paper.REGRESSION[name] for name in "AIJ")
    pairs = _pairs(study, "gamma")
    # To differ from no jigsaw at all is no trend yet: the largest γ must differ from the smallest.
    ends = study.ends()
    trend = [*pairs, *([(ends[0].name, ends[1].name)] if ends else [])]
    return [
        Claim(
            f"Consistency rises with γ: {first.consistency:.1f} to {last.consistency:.1f} %.",
            tuple(_more(run, than, SAME) for run, than in trend),
            "rise",
        ),
        Claim(
            f"Diff. Norm. falls with γ: {first.diff_norm:.1f} to {last.diff_norm:.1f}.",
            tuple(_less(run, than, MOVED) for run, than in trend),
            "fall",
        ),
        Claim(
            f"Accuracy is kept whatever γ (here: no more than {KEPT_OVER_RATIOS:g} points lost).",
            tuple(_keeps(run, than, KEPT_OVER_RATIOS) for run, than in pairs),
        ),
        Claim(
            "With MJP and its regressor (NLN), a position is told less well from its embedding by "
            f"linear regression: 1-D error {plain.one[0]:g} to {mlp.one[0]:g}, 2-D error "
            f"{plain.two[0]:g} to {mlp.two[0]:g}.",
            tuple(_more("J", "A", quantity) for quantity in MAE),
        ),
        Claim(
            f"With the linear regressor (LN), it is told better: 1-D error {plain.one[0]:g} to "
            f"{linear.one[0]:g}, 2-D error {plain.two[0]:g} to {linear.two[0]:g}.",
            tuple(_less("I", "A", quantity) for quantity in MAE),
        ),
        Claim(
            "A larger γ lets gradients tell less of a picture (patch solve, an attack that does "
            "not know of MJP).",
            tuple(_less(run, than, PATCH_SOLVE) for run, than in trend),
            "fall",
        ),
        Claim(
            "A larger γ lets gradients tell less also to an attacker who knows MJP (adaptive "
            "solve).",
            tuple(_less(run, than, ADAPTIVE_SOLVE) for run, than in trend),
            "fall",
            ours=True,
        ),
    ]


def _pairs(study: Study, table: str) -> list[tuple[str, str]]:
    """Rows with MJP, and what each is compared with."""
    found = [(run, study.baseline(table, run)) for run in study.rows(table) if run.gamma]
    return [(run.name, than.name) for run, than in found if than is not None]


def _backbones(study: Study) -> list[Claim]:
    claims = []
    look = papers_row("backbones")
    for name, other in _pairs(study, "backbones"):
        run, than = study.runs[name], study.runs[other]
        ours, theirs = (look(one) if look else None for one in (run, than))
        printed = _printed(ours, theirs) if ours and theirs else "not in the paper"
        claims.append(
            Claim(
                f"{run.label} is more consistent than {than.label}, its features move less, and "
                f"accuracy is kept ({printed}; here: no more than {KEPT:g} point lost).",
                (_more(name, other, SAME), _less(name, other, MOVED), _keeps(name, other)),
            )
        )
    return claims


def _printed(ours: paper.Classification, theirs: paper.Classification) -> str:
    told = f"{ours.consistency - theirs.consistency:+.1f} points"
    if ours.diff_norm is not None and theirs.diff_norm is not None:
        told += f", {ours.diff_norm - theirs.diff_norm:+.2f}"
    return f"{told}, {ours.top1 - theirs.top1:+.1f} points"


def _robustness(study: Study) -> list[Claim]:
    pairs = _pairs(study, "robustness")
    plain, with_mjp = (paper.ROBUSTNESS[one].mce for one in (False, True))
    text = f"MJP lowers the error on corrupted images: mCE {plain:.1f} to {with_mjp:.1f}."
    drawn = tuple(one for one in pairs if not study.runs[one[0]].start)
    tuned = [one for one in pairs if one not in drawn]
    claims = [Claim(text, tuple(_less(*one, MEAN_ERROR) for one in drawn))] if drawn else []
    for run, than in tuned:
        asked = f"{study.runs[run].label}: it errs less on corrupted images than without MJP."
        claims.append(Claim(asked, (_less(run, than, MEAN_ERROR),), ours=True))
    return claims


def _finetune(study: Study) -> list[Claim]:
    return [
        Claim(
            f"{study.runs[run].label}: a short fine-tune with MJP gains consistency, and accuracy "
            f"is kept (no more than {KEPT:g} point lost).",
            (_more(run, than, SAME), _keeps(run, than)),
            ours=True,
        )
        for run, than in _pairs(study, "finetune")
    ]


def _cost(study: Study) -> list[Claim]:
    def at_most(percent: float) -> tuple[Part, ...]:
        pairs = _pairs(study, "cost")
        return tuple(Part(run, than, SECONDS, "below", percent) for run, than in pairs)

    return [
        Claim(
            f"An epoch with MJP takes {paper.TIME_PERCENT:g} % more time at most.",
            at_most(paper.TIME_PERCENT),
        ),
        Claim(f"It takes {AIM_PERCENT:g} % more at most.", at_most(AIM_PERCENT), ours=True),
    ]


def _convergence(study: Study) -> list[Claim]:
    def is_whole(run: StudyRun) -> bool:
        return run.variant == "J"

    pairs = [
        (run.name, than.name)
        for run in study.rows("convergence")
        if is_whole(run) and (than := study.baseline("convergence", run)) is not None
    ]
    parts = tuple(
        _less(run, than, Quantity(f"epochs to {level} %"))
        for run, than in pairs
        for level in levels(study)
    )
    return [Claim("MJP reaches a given accuracy in fewer epochs.", parts)]
