"""Every code block of the README runs, in order, as a reader would paste it."""

import re
import shlex
from pathlib import Path

import pytest
import torch
import tyro

from mjp.cli import _chosen_recipe, _spelled_out, _verbs
from mjp.commands import options

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What the text says the reader has: a batch, a loss and a generator of their own.
    given = {
        "images": torch.randn(1, 3, 224, 224),
        "labels": torch.tensor([3]),
        "criterion": torch.nn.CrossEntropyLoss(),
        "generator": torch.Generator().manual_seed(0),
    }
    assert len(blocks("python")) == 5
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), given)
        if "loss" in given:
            given["loss"].backward()
            assert torch.isfinite(given.pop("loss"))
    assert given["model"].position_grid().rows == 24
    assert type(given["same"]).__name__ == "MJPVisionTransformer"


def test_the_python_blocks_of_the_audit_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "audit.md").read_text()
    given: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "audit.md", "exec"), given)
    assert given["result"].applies
    assert (tmp_path / "runs" / "update.safetensors").is_file()


def test_the_make_targets_it_names_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+)", README)) - {"it"}
    assert {"demo", "test", "lint", "bench"} <= named <= targets


def test_the_flags_it_names_exist():
    kinds = {
        "step": options.BenchStepOptions,
        "plan": options.BenchPlanOptions,
        "train": options.BenchTrainOptions,
        "eval": options.BenchEvalOptions,
        "audit": options.BenchAuditOptions,
    }
    text = README + (ROOT / "docs" / "evaluation.md").read_text()
    for command in re.findall(r"`mjp (bench [^`]*)`", text):
        _, verb, *flags = shlex.split(command)
        for flag in flags:
            if flag.startswith("--"):
                assert flag[2:] in kinds[verb].__dataclass_fields__


def commands() -> list[str]:
    """Every line of a shell block of README and docs, and every `mjp train …` in their text."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            lines = [line.partition("#")[0] for line in block.splitlines()]
            found += [part.strip() for line in lines for part in line.split("&&")]
        found += re.findall(r"`(mjp (?:train|check|eval|probe|audit) [^`…]*)`", text)
    lines = {line for line in found if "mjp" in line and "…" not in line}
    return sorted(line for line in lines if not line.startswith("python "))


@pytest.mark.parametrize("command", commands())
def test_the_commands_it_shows_can_be_parsed(command):
    words = shlex.split(command)
    arguments = words[words.index("mjp") + 1 :]
    if "RECIPE" in arguments or "--resume" in arguments:
        pytest.skip("needs a run, or names no recipe in particular")
    arguments = _spelled_out(arguments)
    name, recipe = _chosen_recipe(arguments)
    parsed = tyro.cli(_verbs(name, recipe), args=arguments)
    assert getattr(parsed, "name", name) == name


def links() -> list[Path]:
    """Every file that README and docs link to."""
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        names = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        found += [page.parent / name for name in names]
    return found


@pytest.mark.parametrize("path", links(), ids=lambda path: path.name)
def test_the_files_it_links_exist(path):
    assert path.is_file()
