"""The second task, which has no code for most of what is tested here."""

from tests.tasks.contract import TaskContract


class TestPixels(TaskContract):
    recipe = "pixels"

    def check_metrics(self, values):
        assert 5 < values["psnr"] < 40
