"""Which output stands for which class of the data."""

import pytest
from timm.data import ImageNetInfo

from mjp.core.errors import DataError
from mjp.evaluate.confidence import subset_classes
from mjp.models.subject import class_outputs, imagenet_synsets, is_imagenet


class Model:
    """As much of a model as matters here."""

    def __init__(self, num_classes, label_names=None):
        self.num_classes = num_classes
        self.pretrained_cfg = {"label_names": label_names} if label_names else {}


ANIMALS = Model(3, ["ant", "bee", "cat"])


@pytest.mark.parametrize(
    ("model", "classes", "outputs"),
    [
        (ANIMALS, ("cat", "ant"), [2, 0]),
        (Model(4), ("0", "1", "2", "3"), [0, 1, 2, 3]),
        (Model(2, ["a", "b"]), ("0", "1"), [0, 1]),
        (Model(1000), ("house_finch", "golden_retriever"), [12, 207]),
        (Model(1000), ("missile", "projectile"), [657, 744]),  # "missile"; "projectile, missile".
    ],
)
def test_outputs_are_found_by_name_or_else_in_order(model, classes, outputs):
    assert class_outputs(model, classes, "d").tolist() == outputs


@pytest.mark.parametrize(
    ("model", "classes", "words"),
    [
        (ANIMALS, ("ant", "dog"), "none of the model's 3 classes: dog"),
        (Model(10), ("0", "1", "2"), "d has 3 classes and the model 10 outputs"),
        (Model(1000), ("n01443537", "n99999999"), "none of ImageNet's 1000 classes: n99999999"),
        (Model(1000), ("crane",), "several"),
        (Model(0), ("a",), "no classifier"),
    ],
)
def test_classes_without_an_output_are_named(model, classes, words):
    with pytest.raises(DataError, match=words):
        class_outputs(model, classes, "d")


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
    asked = ("n01443537", "n13052670")
    for names in (synsets, described, shuffled, [d.split(",")[0] for d in described]):
        model = Model(1000, list(names))
        assert is_imagenet(model)
        order = shuffled if names is shuffled else synsets
        assert class_outputs(model, asked, "d").tolist() == [order.index(name) for name in asked]
    assert is_imagenet(Model(1000))
    assert not is_imagenet(Model(1000, [f"thing {number}" for number in range(1000)]))
    assert not is_imagenet(Model(10))


@pytest.mark.parametrize("subset", ["imagenet_a", "imagenet_o"])
def test_lists_are_of_200_classes_of_imagenet_in_its_order(subset):
    listed = subset_classes(subset)
    assert len(set(listed)) == 200
    assert list(listed) == [name for name in imagenet_synsets() if name in set(listed)]
