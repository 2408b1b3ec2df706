"""The search attacks: images whose gradient is the one that was shared; a table of settings.

`invert`: Inverting Gradients (Geiping et al. 2020): the gradient's direction, and smoothness. The
paper compares the direction of all gradients in one. In a transformer a few large ones then hide
the small ones that tell patches apart, so each parameter's direction counts equally here.

`dlg`: Deep Leakage from Gradients (Zhu et al. 2019): squared differences, L-BFGS, soft labels
searched together with the images, no prior; it needs no classifier's gradient. Unlike there each
parameter's difference is relative to its size, and the first images are nearly grey: both bring a
transformer's picture out sooner. `idlg` (Zhao et al. 2020): the label read off the classifier.

`april_opt`: APRIL's search (Lu et al. 2022): all gradients, and the direction of the positions'.
The paper takes one cosine of the whole position table; here it is the mean over its rows, since the
row of the class token, in which no patch is seen, would otherwise make up nearly all of it.

`gradvit`: GradViT (Hatamizadeh et al. 2022): gradients, borders of patches as smooth as their
insides, total variation, and several seeds that are held together. The paper also holds the images
to the statistics of a pretrained network, which the attacker here is not given.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from mjp.privacy.attacks.descent import descend
from mjp.privacy.attacks.matching import Matching, Settings, matched_names
from mjp.privacy.public import PublicModel
from mjp.privacy.reading import Attack, Cases, Reading, Recovered
from mjp.privacy.update import Effort

VALUES_AT_ONCE = 100_000_000
"""Gradient values of all candidates that are computed together; bounds the memory."""

IDLG = Settings(
    about="search: distance between gradients, label read off",
    objective="l2",
    optimizer="lbfgs",
    steps=300,
    learning_rate=1.0,
)
INVERT = Settings(
    about="search: cosine between gradients, total variation",
    objective="cosine",
    optimizer="adam_signed",
    steps=2000,
    learning_rate=0.1,
    milestones=(3 / 8, 5 / 8, 7 / 8),
    total_variation=0.003,
)
SEARCHES: Mapping[str, Settings] = MappingProxyType(
    {
        "invert": INVERT,
        "dlg": replace(
            IDLG, about="search: distance between gradients, label included", labels="searched"
        ),
        "idlg": IDLG,
        "april_opt": replace(
            IDLG,
            about="search: distance, and direction of the positions' gradient",
            steps=600,
            position_cosine=5.0,
            total_variation=1e-5,
        ),
        "gradvit": replace(
            INVERT,
            about="search: gradients, patch borders, several starts that agree",
            objective="l2",
            restarts=3,
            patch_borders=0.003,
            consistency=0.01,
        ),
    }
)


class Search(Attack):
    kind = "search"
    knows_defence = True

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self.settings, self.about = name, settings, settings.about

    def missing(self, public: PublicModel, reading: Reading) -> str | None:
        if not matched_names(reading.update):
            return "no gradient is shared that depends on the images"
        if self.settings.position_cosine and public.surface.positions is None:
            return "the model has no table of position embeddings, whose gradient is to be matched"
        if self.settings.position_cosine and reading.tokens is None:
            return "the gradient of the position embeddings is not shared"
        if self.settings.labels == "inferred" and reading.labels is None:
            return "the gradient of the classifier, which tells the classes, is not shared"
        return None

    def doubts(self, public: PublicModel, reading: Reading) -> list[str]:
        update, notes = reading.update, []
        if reading.num_masked:
            notes.append(
                f"{reading.num_masked} patches are matched in an order that cannot be known"
            )
        elif reading.unknown is not None:
            notes.append("some patches are masked, but the update does not tell which")
        if update.batch > 1:
            notes.append(f"{update.batch} images are summed up in one gradient")
        if update.local_steps > 1 and update.learning_rate is None:
            notes.append(
                f"{update.local_steps} local steps of an unknown learning rate are taken for one"
            )
        return notes

    def run(self, public: PublicModel, cases: Cases, effort: Effort) -> Iterable[Recovered]:
        """Attacks each case's first update; those that ask for the same work together."""
        settings, readings = self.settings, [first for first, *_ in cases]
        steps, restarts = effort.steps or settings.steps, effort.restarts or settings.restarts
        recovered: dict[int, Recovered] = {}
        for part in _parts(readings, restarts):
            matching = Matching(settings, public, [readings[place] for place in part], restarts)
            start = matching.start(effort.seed, f"attack/{self.name}")
            rows = descend(
                start,
                matching.evaluate,
                matching.box(),
                settings.optimizer,
                settings.learning_rates(steps),
                partial(effort.tell, len(part) / len(cases) / steps),
            )
            for place, (images, labels, facts) in zip(
                part, matching.best(start, rows), strict=True
            ):
                told = {**facts, "steps": steps, "restarts": restarts}
                recovered[place] = Recovered(images, labels, told)
        return [recovered[place] for place in range(len(cases))]


def _parts(readings: Sequence[Reading], restarts: int) -> Iterator[list[int]]:
    """The places of updates that can be computed together, as many as fit into memory."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(readings):
        protocol = {**vars(one.update), "defence": "", "gradients": (*one.update.gradients,)}
        kinds.setdefault((*protocol.values(), one.masked is None), []).append(place)
    for places in kinds.values():
        values = sum(one.numel() for one in readings[places[0]].update.gradients.values())
        size = max(1, VALUES_AT_ONCE // (values * restarts))
        yield from (places[at : at + size] for at in range(0, len(places), size))
