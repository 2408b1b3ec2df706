"""The ResNet family of timm: no position embeddings, so only the jigsaw on the input applies."""

from typing import Any

from timm.models.resnet import ResNet
from torch import nn

from mjp.core.errors import ConfigError
from mjp.models.backbone import MJPBackbone


class MJPResNet(MJPBackbone, ResNet):
    """timm's ResNet with the jigsaw."""

    timm_class = ResNet
    timm_modules = ("resnet",)
    family = "ResNet"
    num_feature_maps = 5

    def _prepare_positions(self) -> None:
        config = self.mjp_config
        if config.absolute_positions == "added" or config.positions in ("none", "indexed"):
            raise ConfigError(
                "a ResNet has no position embeddings to add, remove or index; only ratio, shape, "
                "pixels and jigsaw_patch act on it"
            )

    def timm_arguments(self) -> dict[str, Any]:
        stem = self.conv1 if isinstance(self.conv1, nn.Conv2d) else self.conv1[0]
        return {
            "in_chans": stem.in_channels,
            "num_classes": self.num_classes,
            "global_pool": self.global_pool.pool_type,
            "drop_rate": self.drop_rate,
        }


def use_small_stem(model: ResNet) -> None:
    """Makes a ResNet halve its images once before the first stage, by a 3x3 convolution alone."""
    first = next(model.conv1.parameters())
    stem = nn.Conv2d(model.in_chans, model.bn1.num_features, 3, stride=2, padding=1, bias=False)
    model.conv1 = stem.to(first.device, first.dtype)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    for feature in model.feature_info[1:]:  # The first is the stem's own, before pooling.
        feature["reduction"] //= 2
