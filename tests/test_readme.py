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
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_python_block_of_the_readme_runs():
    # What the text says the reader has: a batch, a loss and a generator of their own.
    given = {
        "images": torch.randn(1, 3, 224, 224),
        "labels": torch.tensor([3]),
        "criterion": torch.nn.CrossEntropyLoss(),
        "generator": torch.Generator().manual_seed(0),
    }
    (block,) = blocks("python")
    exec(compile(block, "README.md", "exec"), given)
    given["loss"].backward()
    assert torch.isfinite(given["loss"])


SERVED = ("web",)
"""Pages whose blocks need a server; they run in the tests of the web page."""


def pages_with_python() -> list[str]:
    pages = sorted((ROOT / "docs").glob("*.md"))
    return [one.stem for one in pages if "```python" in one.read_text() and one.stem not in SERVED]


def test_the_data_of_our_study_are_packed_as_its_page_says(tmp_path):
    text = (ROOT / "studies" / "paper" / "README.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
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
    text = (ROOT / "docs" / f"{page}.md").read_text()
    given: dict = {}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
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
    contents = (ROOT / "docs" / "README.md").read_text()
    for path in sorted((ROOT / "docs").glob("*.md")):
        if path.name != "README.md":
            assert f"({path.name})" in contents
            assert f"(docs/{path.name})" in README
    assert {"api", "audit", "method"} <= set(pages_with_python())


def test_the_api_page_names_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in mjp.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_make_targets_it_names_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"make ([a-z]+)", README)) - {"it"}
    assert {"demo", "test", "lint", "bench"} <= named <= targets


def test_the_flags_it_names_exist():
    kinds = {verb.name: verb.options for verb in verbs()}
    pages = (ROOT / "docs").glob("*.md")
    text = README + "".join(page.read_text() for page in pages)
    for command in re.findall(r"`mjp (bench [^`]*)`", text):
        _, bench, *flags = shlex.split(command)
        for flag in flags:
            if flag.startswith("--"):
                assert flag[2:] in kinds[f"bench {bench}"].__dataclass_fields__


def commands() -> list[str]:
    """Every line of a shell block of README and docs, and every `mjp train …` in their text."""
    found = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            lines = [line.partition("#")[0] for line in block.splitlines()]
            found += [part.strip() for line in lines for part in line.split("&&")]
        found += re.findall(
            r"`(mjp (?:train|check|eval|probe|audit|report|demo|serve|study) [^`…]*)`", text
        )
    lines = {line for line in found if "mjp" in line and "…" not in line}
    return sorted(line for line in lines if not line.startswith("python "))


@pytest.mark.parametrize("command", commands())
def test_the_commands_it_shows_can_be_parsed(command):
    words = shlex.split(command)
    arguments = words[words.index("mjp") + 1 :]
    if "RECIPE" in arguments or "--resume" in arguments:
        pytest.skip("needs a run, or names no recipe in particular")
    parsed = parse(arguments, verbs())[1]
    if isinstance(parsed, StudyOptions):
        assert jobs_of(read_study(str(ROOT / parsed.name if "/" in parsed.name else parsed.name)))


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


def test_the_study_that_the_documentation_shows_can_be_read(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/training.md").read_text(), re.DOTALL)
    (tmp_path / "study.toml").write_text(text)
    jobs = jobs_of(read_study(str(tmp_path / "study.toml")))
    assert [job.run for job in jobs if job.part == "train"] == [
        f"{run}-{seed}" for run in ("plain", "half") for seed in range(3)
    ]
