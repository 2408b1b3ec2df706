"""Hidden patches of digits are filled in: the smallest task there is, to start others from."""

from pathlib import Path

from mjp.core.verbs import TaskPlugin
from mjp.tasks.pixels.config import PixelsConfig

TASK = TaskPlugin(PixelsConfig, Path(__file__).parent / "recipes")
