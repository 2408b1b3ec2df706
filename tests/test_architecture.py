"""The shape of the code itself: imports, side effects, names, settings that somebody reads."""

import ast
import dataclasses
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import mjp
from mjp.catalog import tasks, verbs

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_imports_go_down_only():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_importing_mjp_and_its_plug_ins_loads_nothing_heavy_and_draws_nothing():
    script = (
        "import sys, mjp\n"
        "from mjp.catalog import sections, tasks, verbs\n"
        "assert verbs() and sections() and tasks()\n"
        "heavy = {'torch', 'timm', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import pkgutil\n"
        "assert pkgutil.get_data('timm', 'version.py')\n"
        "import torch\n"
        "state = torch.get_rng_state()\n"
        "import timm\n"
        "assert torch.equal(state, torch.get_rng_state())\n"
        "import importlib.resources\n"
        "assert importlib.resources.files('timm').joinpath('version.py').is_file()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_can_be_had_and_is_listed():
    for name in mjp.__all__:
        assert getattr(mjp, name) is not None
    assert set(mjp.__all__) <= set(dir(mjp))
    with pytest.raises(AttributeError, match="no attribute 'sample_plans'"):
        _ = mjp.sample_plans


def configurations():
    """The options of every verb and the sections inside them."""
    waiting = [verb.options for verb in verbs()] + [task.config for task in tasks().values()]
    classes = []
    for config in waiting:
        if config not in classes:
            classes.append(config)
            hints = typing.get_type_hints(config).values()
            waiting += [hint for hint in hints if dataclasses.is_dataclass(hint)]
    return classes


@pytest.mark.parametrize("config", configurations())
def test_every_field_of_a_configuration_is_read_by_some_code(config):
    home = sys.modules[config.__module__].__file__
    others = "\n".join(path.read_text() for path in SOURCES if str(path) != home)
    own = Path(home).read_text()
    for field in dataclasses.fields(config):
        read = re.search(rf"\.{field.name}\b", others) or re.search(
            rf"self\.{field.name}\b.*\*|\boptions\.{field.name}\b", own
        )
        # Read before the options are parsed, because it decides their defaults.
        read = read or f'"--{field.name}"' in others
        assert read, f"{config.__name__}.{field.name} is read nowhere"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_say_what_they_own_and_keep_to_the_house_rules(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the first line says what the file owns"
    assert len(text.splitlines()) <= 400
    assert "from __future__ import annotations" not in text
    assert path.stem not in ("utils", "common", "misc", "helpers")
    # A user's own module may be named as text; of ours, only the list of plug-ins is.
    assert "import_module" not in text or path.name in ("catalog.py", "opening.py", "factory.py")
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, "no bare except"
        if isinstance(node, ast.Call) and ast.unparse(node.func) != "zip":
            assert "strict=False" not in map(ast.unparse, node.keywords), "nothing is left out"
