"""Verdicts on the paper's claims, each way, from made-up studies."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from mjp.core.records import Record
from mjp.report.study import SECONDS, Quantity
from mjp.report.study_claims import Part
from mjp.report.study_derived import derive
from mjp.report.study_reading import levels, studies_of
from mjp.report.study_tables import MAE
from mjp.report.study_tests import Comparison
from mjp.report.study_words import is_close, limits, outcome, overview, verdicts_of
from tests.report import made_study as made


def view_of(runs):
    (study,) = studies_of(made.records(runs))
    return derive(study)


def changed(runs, **changes):
    """The runs, some with other values: `J={"top1": 50.0}`."""
    return [replace(run, **changes.get(run.name.replace("-", "_"), {})) for run in runs]


def verdict(runs, table, start):
    """The one whose claim starts so."""
    (found,) = (
        one for one in verdicts_of(view_of(runs), table) if one.claim.text.startswith(start)
    )
    return found


LAST = "Localization on top (J"
GAMMA_WORSE = {"gamma_0.27": {"error": 55.0}}


@pytest.mark.parametrize(
    ("top1", "level", "head"),
    [
        (61.5, "holds", "Holds here: J against G: accuracy +1."),
        (60.1, "in part", "Holds in part: "),  # More than A by a little, not than G.
        (58.0, "does not hold", "Does not hold here: J against G: accuracy -2."),
    ],
)
def test_a_gain_over_two_runs_is_judged_by_both(top1, level, head):
    runs = changed(made.ABLATION, J={"top1": top1}, A={"top1": 59.0})
    found = verdict(runs, "ablation", LAST)
    assert found.level == level
    assert found.sentence.startswith(head)
    assert found.records


def test_what_localization_does_to_consistency_is_asked_beside_the_papers_table():
    lower = {"D": {"consistency": 38.0, "seeds": made.THREE}, "J": {"consistency": 64.0}}
    found = verdict(changed(made.ABLATION, **lower), "ablation", "Localization lowers")
    assert (found.level, found.claim.ours) == ("holds", True)
    assert "-0.3 in D against A, -0.9 in J against G" in found.claim.text
    higher = verdict(made.ABLATION, "ablation", "Localization lowers")
    assert higher.level == "does not hold"


def test_an_interval_that_holds_zero_tells_nothing():
    noisy = [replace(run, noise=3.0, top1=60.0, seeds=(4, 5, 6)) for run in made.ABLATION]
    # Of other seeds one of twenty tests tells of a difference: here none does.
    found = verdict(noisy, "ablation", LAST)
    assert found.level == "cannot be told"
    assert found.sentence.startswith("Cannot be told here: J against G: accuracy")
    assert "(3 seeds each, noise of 8 runs, 14 degrees of freedom)" in found.sentence


def test_a_missing_run_is_said_and_what_is_there_is_told():
    without = [run for run in made.ABLATION if run.name not in ("B", "G")]
    assert verdict(without, "ablation", "Without position").sentence == (
        "Cannot be told here: there is no run B yet."
    )
    found = verdict(without, "ablation", LAST)
    assert found.level == "in part"
    assert "there is no run G yet" in found.sentence


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [(-0.9, 0.3, "holds"), (-3.0, -1.1, "fails"), (-1.5, 0.5, "open"), (-1.5, -0.5, "open")],
)
def test_kept_means_that_no_more_than_a_point_can_be_lost(low, high, wanted):
    part = Part("G", "A", Quantity("top1"), "above", -1.0)
    assert outcome(Comparison((low + high) / 2, low, high, "seeds", 3), part) == wanted


def test_at_most_is_a_bound_from_above():
    part = Part("J", "A", Quantity("epoch_seconds"), "below", 2.0)
    told = [outcome(Comparison(0, *ends, "seeds", 3), part) for ends in ((0, 1), (1, 3), (3, 4))]
    assert told == ["holds", "open", "fails"]
    assert outcome(Comparison(0, None, None, "nothing", 0), part) == "open"


@pytest.mark.parametrize(
    ("consistency", "level"), [(62.0, "cannot be told"), (40.0, "does not hold")]
)
def test_accuracy_kept_alone_is_no_part_of_a_gain(consistency, level):
    plain, tuned = made.FINETUNE[1:]
    same = replace(tuned, top1=plain.top1, consistency=consistency, noise=0.3)
    found = verdict((plain, same), "finetune", "finetuned-mjp-0.27")
    assert "accuracy" in found.sentence
    assert found.level == level


def test_accuracy_kept_is_no_part_of_a_gain_that_was_not_measured():
    records = [
        one
        for one in made.records(made.FINETUNE[1:])
        if one.kind not in ("study jigsaw", "study difference")
    ]
    (study,) = studies_of(records)
    (found,) = verdicts_of(derive(study), "finetune")
    assert "was not measured" in found.sentence
    assert found.level == "cannot be told"


def test_where_accuracy_need_only_be_kept_some_of_it_is_a_part():
    lost = changed((*made.ABLATION, *made.GAMMA), **{"gamma_0.5": {"top1": 50.0}})
    found = verdict(lost, "gamma", "Accuracy is kept")
    assert found.level == "in part"


def test_cost_is_in_percent_and_only_of_runs_that_ran_alone():
    assert verdict(made.COST, "cost", "An epoch").sentence.startswith(
        "Holds here: cost-J against cost-A: time of an epoch +0."
    )
    slow = changed(made.COST, cost_J={"epoch_seconds": 14.7})
    assert verdict(slow, "cost", "An epoch").level == "does not hold"
    beside = changed(made.COST, cost_J={"alone": False})
    assert verdict(beside, "cost", "An epoch").level == "cannot be told"


def test_what_should_rise_with_gamma_but_falls_at_one_step_holds_in_part():
    runs = (*made.ABLATION, *made.GAMMA)
    assert verdict(runs, "gamma", "Consistency rises").level == "holds"
    dented = [replace(run, consistency=60.0) if run.name == "gamma-0.5" else run for run in runs]
    found = verdict(dented, "gamma", "Consistency rises")
    assert found.level == "in part"
    assert "they do not all rise" in found.sentence


def test_an_attacker_who_knows_may_see_another_side():
    runs = [
        replace(run, psnr=(run.psnr[0], 80.0)) if run.psnr else run
        for run in (*made.ABLATION, *made.GAMMA)
    ]
    assert verdict(runs, "gamma", "A larger γ lets gradients tell less of").level == "holds"
    found = verdict(runs, "gamma", "A larger γ lets gradients tell less also")
    assert found.claim.ours
    assert found.level == "cannot be told"


def test_one_of_two_backbones_alone_does_not_hold():
    runs = changed(made.BACKBONES, swin_mjp={"consistency": 20.0, "top1": 60.0})
    found = verdicts_of(view_of(runs), "backbones")
    assert [one.level for one in found] == ["does not hold", "holds"]


def test_epochs_to_an_accuracy_are_read_off_the_curve():
    runs = made.ABLATION
    (study,) = studies_of(made.records(runs))
    lowest = min(made.top1_of(run, seed) for run in runs for seed in run.seeds
                 if "convergence" in run.tables)  # fmt: skip
    assert levels(study) == [int(share * lowest) for share in (0.5, 0.75, 0.9, 0.95)]
    level = levels(study)[0]
    reading = study.runs["A"].of(Quantity(f"epochs to {level} %"))["training"]["0"].value
    curve = study.runs["A"].epochs["0"]
    assert curve[int(reading)] < level <= curve[int(reading) + 1]
    assert verdict(runs, "convergence", "MJP reaches").level == "holds"
    late = changed(runs, J={"rate": 9.0})
    assert verdict(late, "convergence", "MJP reaches").level == "does not hold"


def test_seconds_to_an_accuracy_are_epochs_times_those_of_the_cost_table():
    (study,) = studies_of(made.records((*made.ABLATION, *made.COST)))
    view, level = derive(study), levels(study)[-1]
    run, cost = study.runs["J"], study.runs["cost-J"]
    epochs = view.sum(run, Quantity(f"epochs to {level} %")).spread.mean
    seconds = view.sum(run, Quantity(f"seconds to {level} %")).spread.mean
    own = view.sum(cost, Quantity("epoch_seconds")).spread.mean
    assert seconds == pytest.approx(epochs * own)
    assert view.sum(study.runs["E"], Quantity(f"seconds to {level} %")) is None


def test_seeds_of_other_runs_tell_of_the_noise_of_a_run_of_one():
    (study,) = studies_of(made.records(made.ABLATION))
    found = derive(study).pair(study.runs["B"], study.runs["A"], Quantity("top1")).comparison
    assert (found.over, found.count, found.against) == ("seeds", 1, 3)
    assert (found.tested, found.agreeing) == (1, 1)
    told = verdict(made.ABLATION, "ablation", "Without position").sentence
    assert told.startswith("Holds here: B against A")
    assert (
        "(1 seed against 3, noise of 4 runs, 6 degrees of freedom; clear over images in 1 of 1)"
        in told
    )


def test_runs_of_other_recipes_tell_nothing_of_the_noise():
    runs = (*made.ABLATION, *made.BACKBONES)
    (study,) = studies_of(made.records(runs))
    pair = (study.runs["swin-mjp"], study.runs["swin"], Quantity("top1"))
    assert derive(study).pair(*pair).comparison.over == "images"
    several = [replace(run, seeds=made.THREE) if "swin" in run.name else run for run in runs]
    (study,) = studies_of(made.records(several))
    found = derive(study).pair(study.runs["swin-mjp"], study.runs["swin"], Quantity("top1"))
    assert found.comparison.basis == "3 seeds, paired; clear over images in 0 of 3"


def test_runs_that_train_longer_are_another_recipe_and_so_are_those_that_tell_none():
    def over(**changes):
        records = made.records(made.ABLATION)
        for place, one in enumerate(records):
            if one.kind == "study run" and one.conditions["run"] == "B":
                told = {**one.conditions, **changes}
                records[place] = Record(one.kind, told, one.values)
        (study,) = studies_of(records)
        pair = (study.runs["B"], study.runs["A"], Quantity("top1"))
        return derive(study).pair(*pair).comparison.over

    assert over() == "seeds"
    assert over(epochs=300) == "images"
    assert over(architecture=None) == "images"


def test_what_comes_back_under_a_jigsaw_has_a_noise_of_its_own():
    """Without one it hangs on the last digits of numbers."""
    runs = changed((*made.ABLATION, *made.GAMMA), D={"seeds": made.THREE})
    (study,) = studies_of(made.records(runs))
    view, psnr = derive(study), Quantity("psnr patch_solve")
    cross = view.pair(study.runs["J"], study.runs["D"], psnr).comparison
    assert (cross.basis, cross.pooled) == ("3 seeds, paired", 0)
    # J alone has seeds to tell of, and no other run under a jigsaw shares two of them.
    assert view.pair(study.runs["gamma-0.5"], study.runs["J"], psnr).comparison.over != "seeds"


def test_errors_of_positions_are_compared_by_their_logarithms():
    (study,) = studies_of(made.records(made.ABLATION))
    one, other = (
        {seed: found.value for seed, found in study.runs[name].of(MAE[0])[""].items()}
        for name in "JA"
    )
    wanted = np.expm1(np.mean([np.log(one[seed] / other[seed]) for seed in one]))
    found = derive(study).pair(study.runs["J"], study.runs["A"], MAE[0]).comparison
    assert found.difference == pytest.approx(100 * wanted)


def test_odd_times_end_in_a_number():
    times = {("cost-A", 0): 1e-300, ("cost-A", 1): 1e12, ("cost-J", 0): 1e12, ("cost-J", 1): 1e-3}
    records = [
        Record(one.kind, one.conditions, {**one.values, "epoch_seconds": time})
        for one in made.records([replace(run, seeds=(0, 1)) for run in made.COST])
        if one.kind == "study run"
        for time in [times[str(one.conditions["run"]), one.conditions["seed"]]]
    ]
    (study,) = studies_of(records)
    found = derive(study).pair(study.runs["cost-J"], study.runs["cost-A"], SECONDS).comparison
    assert found.low <= found.difference <= found.high <= 1e14


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.1, 4.1, " (barely)"), (0.3, 4.3, ""), (-4.1, -0.1, " (barely)"), (-0.1, 3.9, "")],
)
def test_an_interval_that_ends_close_to_its_bound_says_barely(low, high, told):
    part = Part("G", "E", Quantity("top1"), "above")
    found = Comparison((low + high) / 2, low, high, "seeds", 3)
    assert limits(one_seed=False, close=is_close(found, part)) == told


def test_times_are_compared_by_their_logarithms_and_alone():
    runs = (*made.COST, replace(made.COST[0], name="beside", alone=False, epoch_seconds=99.0))
    (study,) = studies_of(made.records(runs))
    found = derive(study).pair(study.runs["cost-J"], study.runs["cost-A"], SECONDS).comparison
    times = [
        [one.value for one in study.runs[name].of(SECONDS)["training"].values()]
        for name in ("cost-J", "cost-A")
    ]
    wanted = stats.ttest_rel(*np.log(times)).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(100 * np.expm1([wanted.low, wanted.high]))
    assert found.difference == pytest.approx(100 * np.expm1(np.mean(np.log(times), 1) @ [1, -1]))
    assert found.pooled == 0


def test_without_a_second_seed_of_any_run_the_images_decide_and_it_is_said():
    single = [replace(run, seeds=(0,)) for run in made.ABLATION]
    (study,) = studies_of(made.records(single))
    found = derive(study).pair(study.runs["B"], study.runs["A"], Quantity("top1")).comparison
    told = study.differences["B", "A", "0", Quantity("top1"), made.TRAINED]
    ends = (told.values["difference_low"], told.values["difference_high"])
    assert (found.low, found.high) == pytest.approx(ends)
    assert (found.over, found.count) == ("images", 10000)
    verdicts = verdicts_of(derive(study), "ablation")
    assert verdicts[0].sentence.startswith("Holds here (over images of one seed): B against A")
    several = verdicts_of(view_of(made.ABLATION), "ablation")
    assert not any("images of one seed" in one.sentence for one in several)


def test_with_several_seeds_those_whose_images_are_clear_are_counted():
    records = made.records(made.ABLATION)
    for place, record in enumerate(records):
        told = record.conditions
        if record.kind == "study difference" and (told["run"], told["seed"]) == ("J", 1):
            wide = {"difference": 1.0, "difference_low": -1.0, "difference_high": 3.0}
            records[place] = Record(record.kind, told, wide)
    (study,) = studies_of(records)
    found = derive(study).pair(study.runs["J"], study.runs["A"], Quantity("top1")).comparison
    assert (found.count, found.tested, found.agreeing) == (3, 3, 2)


def test_between_runs_of_different_seeds_there_is_no_interval_and_no_verdict():
    """Images do not tell what another seed changes: two seeds of one run may differ "clearly"."""
    runs = changed(made.ABLATION, B={"seeds": (7,)})
    (study,) = studies_of(made.records(runs))
    found = derive(study).pair(study.runs["B"], study.runs["A"], Quantity("top1")).comparison
    plain = [made.top1_of(runs[0], seed) for seed in made.THREE]
    assert found.difference == pytest.approx(made.top1_of(runs[1], 7) - sum(plain) / 3)
    assert (found.low, found.high, found.over) == (None, None, "other seeds")
    told = verdict(runs, "ablation", "Without position")
    assert told.level == "cannot be told"
    assert "(different seeds, no interval)" in told.sentence


def test_what_rises_at_the_first_gamma_and_stays_is_no_rise():
    runs = (*made.ABLATION, *made.GAMMA)
    same = {"gamma-0.09": 66.01, "gamma-0.27": 66.02, "gamma-0.5": 66.03}
    flat = [
        replace(run, consistency=same.get(run.name, run.consistency), noise=0, seeds=(0,))
        for run in runs
    ]
    found = verdict(flat, "gamma", "Consistency rises")
    assert found.level == "in part"
    assert "they rise (single steps are not tested)" in found.sentence
    ends = found.sentence.split("γ = 0.5 against J: ")[1]
    assert " ? (10,000 images, not paired, of one seed)" in ends


def test_where_parts_come_out_differently_each_says_how():
    runs = changed(made.ABLATION, E={"top1": 62.0, "consistency": 55.0})
    found = verdict(runs, "ablation", "Jigsaws alone")
    assert found.level == "in part"
    assert "✗ (3 seeds" in found.sentence
    assert found.sentence.endswith("✗: does not hold, ?: cannot be told.")
    fails = changed(made.ABLATION, E={"top1": 62.0, "consistency": 30.0})
    found = verdict(fails, "ablation", "Jigsaws alone")
    assert found.level == "does not hold"
    assert "✗" not in found.sentence


def test_a_fine_tuned_model_does_not_decide_on_what_the_paper_says_of_training():
    worse = changed((*made.ABLATION, *made.GAMMA), J={"error": 55.0}, **GAMMA_WORSE)
    tuned = [run for run in made.FINETUNE if run.trained]
    tuned = [replace(run, error=40.0) if run.ratio else run for run in tuned]
    records = made.records((*worse, *tuned))
    for place, record in enumerate(records):
        if record.kind == "study run" and record.conditions["run"].startswith("finetuned"):
            told = {**record.conditions, "init": "weights.safetensors"}
            records[place] = Record(record.kind, told, record.values)
    (study,) = studies_of(records)
    papers, ours = verdicts_of(derive(study), "robustness")
    assert papers.level == "does not hold"
    assert not papers.claim.ours
    assert ours.level == "holds"
    assert ours.claim.ours


def test_the_overview_counts_claims():
    assert overview(view_of(made.COST)) == (
        "Of the claims that the study “paper” looks at (1 of the paper, 1 of ours): 2 hold here, "
        "0 hold in part, 0 do not hold, 0 cannot be told."
    )
    assert overview(view_of(made.OTHER)) == ""


def test_the_overview_says_what_hangs_on_one_seed():
    told = overview(view_of(made.BACKBONES))
    assert ": 2 hold here (over images of one seed), 0 hold in part, 0 do not hold, " in told
    told = overview(view_of((*made.BACKBONES, *made.COST)))
    assert ": 4 hold here (2 of them over images of one seed), 0 hold in part, " in told
