"""Every code block of the README runs, in order, as a reader would paste it."""

import re
import shlex
from pathlib import Path

import pytest
import torch

import mjp
from mjp.catalog import verbs
from mjp.data.archives import ParquetSource
from mjp.data.source import FolderSource
from mjp.parsing import parse
from mjp.privacy.defence_parts import PARTS
from mjp.study import StudyOptions, jobs_of, read_study
from tests.data.pictures import write_folder

ROOT = Path(__file__).parents[1]
PAGES = {path: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
README = PAGES[ROOT / "README.md"]


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def test_the_python_block_of_the_readme_runs():
    # What the text says the reader has: a batch, a loss and a generator of their own.
    given = {
        "images": torch.randn(1, 3, 224, 224),
        "labels": torch.tensor([3]),
        "criterion": torch.nn.CrossEntropyLoss(),
        "generator": torch.Generator().manual_seed(0),
    }
    (block,) = blocks("python", README)
    exec(compile(block, "README.md", "exec"), given)
    given["loss"].backward()
    assert torch.isfinite(given["loss"])


SERVED = ("web",)
"""Pages whose blocks need a server; they run in the tests of the web page."""


def pages_with_python() -> list[str]:
    pages = {path.stem for path, text in PAGES.items() if "```python" in text}
    return sorted(pages - {"README", *SERVED})


def test_the_data_of_our_study_are_packed_as_its_page_says(tmp_path):
    text = (ROOT / "studies" / "paper" / "README.md").read_text()
    (block,) = blocks("python", text)
    given: dict = {}
    exec(compile(block, "README.md", "exec"), given)
    write_folder(tmp_path / "pictures", 6)
    given["pack"](tmp_path / "pictures", tmp_path / "some-val.parquet", side=8)
    source = ParquetSource([tmp_path / "some-val.parquet"])
    assert source.classes == FolderSource(tmp_path / "pictures").classes
    assert {min(source.picture(index).size) for index in range(6)} == {8}


@pytest.mark.parametrize("page", pages_with_python())
def test_the_python_blocks_of_the_documentation_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given: dict = {}
    for block in blocks("python", PAGES[ROOT / "docs" / f"{page}.md"]):
        exec(compile(block, f"{page}.md", "exec"), given)
    if page == "audit":
        assert given["result"].applies
        assert (tmp_path / "runs" / "update.safetensors").is_file()
    if page == "extending":
        del PARTS["signs"]
        assert (tmp_path / "runs" / "brightness" / "final" / "model.safetensors").is_file()
        assert given["sent"].defence == "signs=0.01+fp16"
    if page == "method":
        assert given["model"].position_grid().rows == 24
        assert type(given["same"]).__name__ == "MJPVisionTransformer"


def test_the_documentation_has_the_pages_it_promises():
    contents = PAGES[ROOT / "docs" / "README.md"]
    for path in PAGES:
        if path.name != "README.md":
            assert f"({path.name})" in contents
            assert f"(docs/{path.name})" in README
    assert {"api", "audit", "method"} <= set(pages_with_python())


def test_the_api_page_names_every_public_name():
    text = PAGES[ROOT / "docs" / "api.md"]
    missing = [name for name in mjp.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_make_targets_it_names_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+)", README)) - {"it"}
    assert {"demo", "test", "lint", "bench"} <= named <= targets


def commands() -> list[str]:
    """Every line of a shell block of README and docs, and every `mjp train …` in their text."""
    found = []
    for text in PAGES.values():
        for block in blocks("sh", text):
            lines = [line.partition("#")[0] for line in block.splitlines()]
            found += [part.strip() for line in lines for part in line.split("&&")]
        found += re.findall(
            r"`(mjp (?:train|check|eval|probe|audit|report|demo|serve|study|bench) [^`…]*)`", text
        )
    lines = {line for line in found if "mjp" in line and "…" not in line}
    return sorted(line for line in lines if not line.startswith("python "))


@pytest.mark.parametrize("command", commands())
def test_the_commands_it_shows_can_be_parsed(command):
    words = shlex.split(command)
    arguments = words[words.index("mjp") + 1 :]
    if {"RECIPE", "NAME", "--resume"} & {*arguments}:
        pytest.skip("needs a run, or names no recipe in particular")
    parsed = parse(arguments, verbs())[1]
    if isinstance(parsed, StudyOptions):
        assert jobs_of(read_study(str(ROOT / parsed.name if "/" in parsed.name else parsed.name)))


def test_the_files_it_links_exist():
    links = {
        page.parent / name
        for page, text in PAGES.items()
        for name in re.findall(r"\]\(([^)#:]+)\)", text)
    }
    assert [link for link in links if not link.is_file()] == []


def test_the_study_that_the_documentation_shows_can_be_read(tmp_path):
    (text,) = blocks("toml", PAGES[ROOT / "docs" / "training.md"])
    (tmp_path / "study.toml").write_text(text)
    jobs = jobs_of(read_study(str(tmp_path / "study.toml")))
    assert [job.run for job in jobs if job.part == "train"] == [
        f"{run}-{seed}" for run in ("plain", "half") for seed in range(3)
    ]
