"""Study files: what they resolve to, and what is said where they are wrong."""

import pytest

from mjp.commands.study_plan import read_study, study_names
from mjp.core.errors import ConfigError

HEAD = """
name = "small"
recipe = "digits"
set = { mjp = { ratio = 0.27 } }
[evaluations.jigsaws]
verb = "accuracy"
data = "digits"
[evaluations.leak]
verb = "audit"
defences = ["mjp={ratio}"]
images = "{root}/pictures"
"""


def write(tmp_path, text, head=HEAD):
    path = tmp_path / "study.toml"
    path.write_text(head + text, encoding="utf-8")
    return str(path)


def test_the_packages_studies_can_be_read():
    for name in study_names():
        study = read_study(name, "/data")
        assert study.tasks
        assert study.title


def test_every_table_of_the_paper_has_its_runs():
    study = read_study("paper", "/data")
    by_table: dict[str, list[str]] = {}
    for task in study.tasks:
        for table in task.entry.tables:
            by_table.setdefault(table, []).append(task.name)
    assert [name[0] for name in dict.fromkeys(n[:-2] for n in by_table["ablation"])] == [
        *"ABCDEFGHIJ"
    ]
    for letter in "AEGJ":
        assert sum(name.startswith(f"{letter}-") for name in by_table["ablation"]) == 3
    ratios = {
        task.recipe.mjp.ratio for task in study.tasks if "gamma" in task.entry.tables if task.recipe
    }
    assert ratios == {0.0, 0.03, 0.09, 0.15, 0.21, 0.27, 0.5, 0.9}
    assert {"backbones", "robustness", "finetune", "cost", "convergence"} <= set(by_table)


def test_what_is_set_for_all_comes_before_the_variant_and_the_runs_own_after(tmp_path):
    text = """
[[runs]]
name = "A"
variant = "A"
[[runs]]
name = "E"
variant = "E"
seeds = [0, 3]
[[runs]]
name = "half"
variant = "J"
set = { mjp = { ratio = 0.5 }, run = { epochs = 7 } }
evaluations = ["jigsaws", "leak"]
"""
    study = read_study(write(tmp_path, text), "/data")
    assert [task.name for task in study.tasks] == ["A-0", "E-0", "E-3", "half-0"]
    plain, first, second, half = (task.recipe for task in study.tasks)
    assert plain.mjp.ratio == 0  # A variant without a jigsaw stays one.
    assert first.mjp.ratio == second.mjp.ratio == 0.27
    assert (first.run.seed, second.run.seed) == (0, 3)
    assert (half.mjp.ratio, half.run.epochs, half.mjp.localization) == (0.5, 7, "mlp")
    leak = study.tasks[-1].parts[1].options()
    assert leak.defences == ("mjp=0.5",)
    assert leak.images == "/data/pictures"


def test_the_key_of_an_evaluation_does_not_depend_on_where_the_data_lies(tmp_path):
    text = '[[runs]]\nname = "J"\nevaluations = ["leak"]\n'
    here, there = (read_study(write(tmp_path, text), root).tasks[0].parts[0] for root in "ab")
    assert here.key == there.key
    assert here.options().images != there.options().images


def test_runs_are_chosen_in_the_order_of_the_patterns(tmp_path):
    text = "".join(f'[[runs]]\nname = "{name}"\nseeds = [0, 1]\n' for name in "AJ")
    study = read_study(write(tmp_path, text), "x")
    chosen = study.chosen(("J-1", "*-0"), ())
    assert [task.name for task in chosen.tasks] == ["J-1", "A-0", "J-0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "lists no runs"),
        ('[[runs]]\nname = "A"\n[[runs]]\nname = "A"', "two runs are called A"),
        ('[[runs]]\nname = "A"\nbaseline = "B"', "no run 'B'"),
        ('[[runs]]\nname = "A"\nevaluations = ["jigsaw"]', "did you mean jigsaws"),
        ('[[runs]]\nname = "A"\nsets = { }', "did you mean set"),
        ('[[runs]]\nname = "../A"', "is no name"),
        ('[[runs]]\nname = "A"\nseeds = [1, 1]', "seeds must be different"),
        ('[[runs]]\nname = "A"\nseeds = [-1]', "seeds"),
        ('[[runs]]\nname = "A"\nset = { run = { epoch = 3 } }', "run.epoch is unknown"),
        ('[[runs]]\nname = "A"\nset = { run = 3 }', "run must be a table"),
        ('[[runs]]\nname = "A"\nset = { run = { epochs = 2026-01-01 } }', "whole number"),
        ('[[runs]]\nname = "A"\nmodel = "resnet50"\nvariant = "A"', "is not trained"),
        ('[[runs]]\nname = "A"\nevaluations = ["leak"]', "--root FOLDER"),
        ('[[runs]]\nname = "A"\nmodel = "vit"\nevaluations = ["leak"]', "has no {ratio}"),
        ('[[runs]]\nname = "A"\nevaluations = ["train"]', "cannot be called train"),
        ('[[runs]]\nname = "A"\nbaseline = "A"', "A cannot be compared with itself"),
        ('[[runs]]\nname = "A"\nrecipe = "nope"', "study.toml: run A: there is no recipe 'nope'"),
        ('[[runs]]\nname = "A"\nevaluations = ["log.txt"]', "cannot be called log.txt"),
        ('[[runs]]\nlabel = "A"', "name is missing"),
    ],
)
def test_mistakes_are_named(tmp_path, text, said):
    with pytest.raises(ConfigError, match=said):
        read_study(write(tmp_path, text), None)


def test_runs_that_are_no_list_are_named(tmp_path):
    with pytest.raises(ConfigError, match="runs must be a list"):
        read_study(write(tmp_path, "", 'name = "s"\nruns = 3\n'), None)


@pytest.mark.parametrize(
    ("evaluation", "said"),
    [
        ('verb = "acuracy"', "verb must be one of accuracy"),
        ('verb = "accuracy"', "data is missing"),
        ('verb = "accuracy"\ndata = "digits"\nratio = 3', "ratio is unknown"),
        ('verb = "accuracy"\ndata = "digits"\nout = "x"', "out is set by the study"),
    ],
)
def test_mistakes_in_evaluations_are_named_before_anything_is_begun(tmp_path, evaluation, said):
    head = f'name = "s"\nrecipe = "digits"\n[evaluations.e]\n{evaluation}\n'
    with pytest.raises(ConfigError, match=said):
        read_study(write(tmp_path, '[[runs]]\nname = "A"\nevaluations = ["e"]', head), None)


def test_a_study_that_there_is_not_is_told_with_what_there_is():
    with pytest.raises(ConfigError, match="did you mean digits"):
        read_study("digit", None)
    with pytest.raises(ConfigError, match=r"cannot be read"):
        read_study("nowhere.toml", None)
