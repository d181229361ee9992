"""torchvision's part of the zoo: classification, segmentation, detection, video and flow.

Detection models end in operations on numbers of boxes that only the run knows; here are their
networks: backbones with feature pyramids and the heads on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CLASSES = 10


@dataclass(frozen=True)
class Vision:
    """One torchvision model.

    ``model`` is a name that ``torchvision.models.get_model`` knows, or a function that makes the
    module; ``shape`` is that of one input image or clip, ``images`` how many the model takes.
    """

    model: "str | Callable[[], torch.nn.Module]"
    shape: tuple[int, ...] = (3, 64, 64)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    images: int = 1

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model with its weights as torchvision draws them, and its arguments."""
        import torch
        import torchvision

        if isinstance(self.model, str):
            model = torchvision.models.get_model(self.model, weights=None, **self.arguments)
        else:
            model = self.model()
        return model, tuple(torch.randn(1, *self.shape) for _ in range(self.images)), {}


def _named(model: str, *shape: int, **arguments: Any) -> Vision:
    return Vision(model, shape or (3, 64, 64), {"num_classes": CLASSES, **arguments})


def _segmentation(model: str, *shape: int) -> Vision:
    return _named(model, *(shape or (3, 64, 64)), weights_backbone=None)


def _pyramid(name: str) -> "Callable[[], torch.nn.Module]":
    def make() -> "torch.nn.Module":
        from torchvision.models.detection import backbone_utils as utils

        if name.startswith("resnet"):
            return utils.resnet_fpn_backbone(backbone_name=name, weights=None, trainable_layers=5)
        return utils.mobilenet_backbone(name, weights=None, fpn=True, trainable_layers=6)

    return make


def _with_head(head: str) -> "Callable[[], torch.nn.Module]":
    """A feature pyramid of 64 channels and a detector's head on its levels."""

    def make() -> "torch.nn.Module":
        import torch
        import torchvision
        from torchvision.models.detection import fcos, retinanet, rpn

        class Detector(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.backbone = torchvision.models.resnet18(num_classes=CLASSES)
                self.pyramid = torchvision.ops.FeaturePyramidNetwork([128, 256, 512], 64)
                self.head = {
                    "retinanet": lambda: retinanet.RetinaNetHead(64, 3, CLASSES),
                    "fcos": lambda: fcos.FCOSHead(64, 1, CLASSES, num_convs=2),
                    "rpn": lambda: rpn.RPNHead(64, 3),
                }[head]()

            def forward(self, image: torch.Tensor) -> Any:
                net = self.backbone
                x = net.maxpool(net.relu(net.bn1(net.conv1(image))))
                levels = {}
                for number, layer in enumerate((net.layer1, net.layer2, net.layer3, net.layer4)):
                    x = layer(x)
                    if number:
                        levels[str(number)] = x
                features = list(self.pyramid(levels).values())
                return self.head(features)

        return Detector()

    return make


def _alexnet() -> "torch.nn.Module":
    import torch
    import torchvision

    model = torchvision.models.alexnet(num_classes=CLASSES)
    model.classifier = torch.nn.Sequential(
        torch.nn.Dropout(), torch.nn.Linear(256 * 36, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    return model


def _vgg() -> "torch.nn.Module":
    import torch
    import torchvision

    model = torchvision.models.vgg11_bn(num_classes=CLASSES)
    model.classifier = torch.nn.Sequential(
        torch.nn.Linear(512 * 49, 64), torch.nn.ReLU(), torch.nn.Dropout(), torch.nn.Linear(64, 10)
    )
    return model


def _maxvit() -> "torch.nn.Module":
    from torchvision.models.maxvit import MaxVit

    return MaxVit(
        input_size=(64, 64),
        stem_channels=32,
        partition_size=2,
        block_channels=[32, 64, 96],
        block_layers=[1, 1, 1],
        head_dim=32,
        stochastic_depth_prob=0.0,
        num_classes=CLASSES,
    )


def _wide_resnet() -> "torch.nn.Module":
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=128)


def _vit() -> "torch.nn.Module":
    from torchvision.models import VisionTransformer

    return VisionTransformer(64, 16, 2, 4, 64, 128, num_classes=CLASSES)


def _convnext() -> "torch.nn.Module":
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths = (48, 96, 192, 384, None)
    blocks = [
        CNBlockConfig(wide or 0, then, depth)
        for wide, then, depth in zip(widths, widths[1:], (1, 1, 2, 1), strict=False)
    ]
    return ConvNeXt(blocks, num_classes=CLASSES)


def _swin() -> "torch.nn.Module":
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 48, [2, 2], [3, 6], [4, 4], num_classes=CLASSES)


def _swin_v2() -> "torch.nn.Module":
    from torchvision.models import SwinTransformer
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    return SwinTransformer(
        [4, 4],
        48,
        [2, 2],
        [3, 6],
        [4, 4],
        num_classes=CLASSES,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    )


def _swin3d() -> "torch.nn.Module":
    from torchvision.models.video import SwinTransformer3d

    return SwinTransformer3d([2, 4, 4], 48, [2, 2], [3, 6], [2, 4, 4], num_classes=CLASSES)


def _mvit() -> "torch.nn.Module":
    from torchvision.models.video.mvit import MSBlockConfig, MViT

    def block(heads: int, wide: int, then: int, q: int, kv: int) -> MSBlockConfig:
        return MSBlockConfig(heads, wide, then, [3, 3, 3], [3, 3, 3], [1, q, q], [1, kv, kv])

    return MViT(
        (64, 64),
        4,
        [block(1, 48, 48, 1, 4), block(2, 48, 96, 2, 2), block(2, 96, 96, 1, 2)],
        residual_pool=True,
        residual_with_cls_embed=False,
        rel_pos_embed=True,
        proj_after_attn=True,
        num_classes=CLASSES,
    )


def _s3d() -> "torch.nn.Module":
    import torch
    import torchvision

    model = torchvision.models.video.s3d(weights=None, num_classes=CLASSES)
    model.avgpool = torch.nn.AvgPool3d((2, 2, 2), 1)
    return model


def _ssd() -> "torch.nn.Module":
    import torchvision

    detector = torchvision.models.detection.ssd300_vgg16(
        weights=None, weights_backbone=None, num_classes=CLASSES
    )
    backbone: torch.nn.Module = detector.backbone
    return backbone


def _ssdlite() -> "torch.nn.Module":
    import torchvision

    detector = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=CLASSES
    )
    backbone: torch.nn.Module = detector.backbone
    return backbone


MODELS: Mapping[str, Vision] = {
    "alexnet": Vision(_alexnet),
    "convnext_tiny": Vision(_convnext),
    "densenet121": _named("densenet121"),
    "efficientnet_b0": _named("efficientnet_b0"),
    "efficientnet_v2_s": _named("efficientnet_v2_s"),
    "googlenet": _named("googlenet", init_weights=False, aux_logits=False),
    "inception_v3": _named("inception_v3", 3, 80, 80, init_weights=False, aux_logits=False),
    "maxvit_t": Vision(_maxvit),
    "mnasnet0_5": _named("mnasnet0_5"),
    "mobilenet_v2": _named("mobilenet_v2"),
    "mobilenet_v3_small": _named("mobilenet_v3_small"),
    "mobilenet_v3_large": _named("mobilenet_v3_large"),
    "regnet_x_400mf": _named("regnet_x_400mf"),
    "regnet_y_400mf": _named("regnet_y_400mf"),
    "resnet18": _named("resnet18"),
    "resnet50": _named("resnet50"),
    "resnext50_32x4d": _named("resnext50_32x4d"),
    "wide_resnet50_2": Vision(_wide_resnet),
    "shufflenet_v2_x0_5": _named("shufflenet_v2_x0_5"),
    "squeezenet1_1": _named("squeezenet1_1"),
    "swin_t": Vision(_swin),
    "swin_v2_t": Vision(_swin_v2),
    "vgg11": Vision(_vgg, (3, 32, 32)),
    "vit": Vision(_vit),
    "deeplabv3_mobilenet": _segmentation("deeplabv3_mobilenet_v3_large"),
    "fcn_resnet50": _segmentation("fcn_resnet50"),
    "lraspp_mobilenet": _segmentation("lraspp_mobilenet_v3_large"),
    "fpn_resnet18": Vision(_pyramid("resnet18")),
    "fpn_mobilenet": Vision(_pyramid("mobilenet_v3_large")),
    "retinanet": Vision(_with_head("retinanet"), (3, 96, 96)),
    "fcos": Vision(_with_head("fcos"), (3, 96, 96)),
    "rpn": Vision(_with_head("rpn"), (3, 96, 96)),
    "ssd_vgg16": Vision(_ssd, (3, 300, 300)),
    "ssdlite": Vision(_ssdlite, (3, 96, 96)),
    "r3d_18": _named("r3d_18", 3, 4, 32, 32),
    "r2plus1d_18": _named("r2plus1d_18", 3, 4, 32, 32),
    "mvit_v2_s": Vision(_mvit, (3, 4, 64, 64)),
    "swin3d_t": Vision(_swin3d, (3, 4, 64, 64)),
    "s3d": Vision(_s3d, (3, 16, 64, 64)),
    "raft_small": Vision("raft_small", (3, 128, 128), images=2),
}
