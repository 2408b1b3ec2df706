"""Classification keeps what every task has."""

from tests.tasks.contract import TaskContract
from tests.train.running import EVERYTHING


class TestClassify(TaskContract):
    recipe = "digits"
    flags = ("--model.arguments.depth", "2", *EVERYTHING, "--model.drop-path", "0")

    def check_metrics(self, values):
        assert 0 <= values["top1"] <= values["top5"] <= 100
        assert values["loss"] > 0
