"""The jigsaw: which patches of an image are masked, and where each one goes."""

from mjp.jigsaw.grid import PatchGrid
from mjp.jigsaw.plan import JigsawPlan
from mjp.jigsaw.sampling import sample_plan

__all__ = ["JigsawPlan", "PatchGrid", "sample_plan"]
