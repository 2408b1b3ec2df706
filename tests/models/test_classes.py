"""Which output stands for which class of the data."""

import pytest
from timm.data import ImageNetInfo

from mjp.core.errors import DataError
from mjp.evaluate.confidence import subset_classes
from mjp.models.facts import class_outputs, imagenet_synsets, is_imagenet


class Model:
    """As much of a model as matters here."""

    def __init__(self, num_classes, label_names=None):
        self.num_classes = num_classes
        self.pretrained_cfg = {"label_names": label_names} if label_names else {}


def test_classes_are_matched_by_the_models_own_names_in_any_order():
    model = Model(3, ["ant", "bee", "cat"])
    assert class_outputs(model, ("cat", "ant"), "d").tolist() == [2, 0]


def test_a_class_that_the_model_does_not_know_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"none of the model's 3 classes: dog"):
        class_outputs(Model(3, ["ant", "bee", "cat"]), ("ant", "dog"), "d")


def test_as_many_unnamed_classes_are_taken_in_order():
    assert class_outputs(Model(4), ("0", "1", "2", "3"), "d").tolist() == [0, 1, 2, 3]
    assert class_outputs(Model(2, ["a", "b"]), ("0", "1"), "d").tolist() == [0, 1]


def test_numbered_folders_are_numbers_though_10_comes_before_2():
    names = tuple(sorted(map(str, range(12))))
    assert names[:3] == ("0", "1", "10")
    assert class_outputs(Model(12), names, "d").tolist() == [int(name) for name in names]
    known = [f"class {number}" for number in range(12)]
    assert class_outputs(Model(12, known), names, "d").tolist() == [int(name) for name in names]


def test_a_model_that_names_imagenets_classes_is_a_model_of_imagenet():
    synsets = imagenet_synsets()
    described = ImageNetInfo().label_descriptions()
    shuffled = sorted(synsets, key=lambda name: name[::-1])
    for names in (synsets, described, shuffled, [d.split(",")[0] for d in described]):
        model = Model(1000, list(names))
        assert is_imagenet(model)
        outputs = class_outputs(model, ("n01443537", "n13052670"), "d").tolist()
        expected = [synsets.index(name) for name in ("n01443537", "n13052670")]
        if names is shuffled:
            expected = [shuffled.index(name) for name in ("n01443537", "n13052670")]
        assert outputs == expected
    assert is_imagenet(Model(1000))
    assert not is_imagenet(Model(1000, [f"thing {number}" for number in range(1000)]))
    assert not is_imagenet(Model(10))


def test_another_number_of_classes_is_an_error_that_gives_both():
    with pytest.raises(DataError, match=r"d has 3 classes and the model 10 outputs"):
        class_outputs(Model(10), ("0", "1", "2"), "d")


def test_imagenets_classes_are_matched_by_wordnet_number():
    synsets = imagenet_synsets()
    outputs = class_outputs(Model(1000), ("n01443537", "n13052670", synsets[7]), "d")
    assert [synsets[i] for i in outputs] == ["n01443537", "n13052670", synsets[7]]


def test_a_wordnet_number_outside_of_imagenet_is_an_error():
    with pytest.raises(DataError, match=r"none of ImageNet's 1000 classes: n99999999"):
        class_outputs(Model(1000), ("n01443537", "n99999999"), "d")


def test_imagenets_classes_are_matched_by_name_unless_it_is_that_of_two():
    outputs = class_outputs(Model(1000), ("house_finch", "golden_retriever"), "d").tolist()
    names = [ImageNetInfo().index_to_description(i) for i in outputs]
    assert names[0].startswith("house finch")
    assert names[1].startswith("golden retriever")
    with pytest.raises(DataError, match="several"):
        class_outputs(Model(1000), ("crane",), "d")


def test_a_class_of_imagenet_is_meant_by_its_first_name_where_another_has_it_as_its_second():
    # 657 is "missile", 744 "projectile, missile".
    assert class_outputs(Model(1000), ("missile", "projectile"), "d").tolist() == [657, 744]


def test_a_model_without_a_classifier_is_refused():
    with pytest.raises(DataError, match="no classifier"):
        class_outputs(Model(0), ("a",), "d")


@pytest.mark.parametrize("subset", ["imagenet_a", "imagenet_o"])
def test_lists_are_of_200_classes_of_imagenet_in_its_order(subset):
    listed = subset_classes(subset)
    assert len(set(listed)) == 200
    assert list(listed) == [name for name in imagenet_synsets() if name in set(listed)]


def test_imagenet_as_list_is_timms():
    import pkgutil

    theirs = pkgutil.get_data("timm.data", "_info/imagenet_a_synsets.txt").decode().split()
    assert list(subset_classes("imagenet_a")) == theirs
