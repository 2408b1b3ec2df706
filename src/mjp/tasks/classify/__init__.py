"""Classification of images, with MJP: the paper's task."""

from pathlib import Path

from mjp.core.verbs import TaskPlugin
from mjp.tasks.classify.config import ClassifyConfig

TASK = TaskPlugin(ClassifyConfig, Path(__file__).parent / "recipes")
