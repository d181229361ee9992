"""timm's part of the zoo: one small model of every family, narrower and shallower where it can be.

A family is a module of ``timm.models``. An entry names the model, the side of its square images
and what is passed to ``timm.create_model`` beside the 10 classes.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CLASSES = 10


@dataclass(frozen=True)
class Timm:
    """One timm model: its name, the side of the images, further arguments of ``create_model``.

    ``module.Class`` instead of a registered name is that class of ``timm.models``, for families
    whose registered models fix what is made smaller here. ``sized``: the model is told the side of
    the images, which its tables depend on.
    """

    model: str
    side: int = 64
    arguments: Mapping[str, Any] = field(default_factory=dict)
    sized: bool = False

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model with its weights as timm draws them, and its arguments."""
        import timm
        import torch

        size = {"img_size": self.side} if self.sized else {}
        module, _, name = self.model.rpartition(".")
        make: Callable[..., torch.nn.Module] = partial(timm.create_model, name)
        if module:
            make = getattr(importlib.import_module(f"timm.models.{module}"), name)
        model = make(num_classes=CLASSES, **size, **self.arguments)
        return model, (torch.randn(1, 3, self.side, self.side),), {}


def _sized(model: str, side: int = 64, **arguments: Any) -> Timm:
    return Timm(model, side, arguments, sized=True)


def _plain(model: str, side: int = 64, **arguments: Any) -> Timm:
    return Timm(model, side, arguments)


_FOUR = {"depths": (1, 1, 2, 1)}

FAMILIES: Mapping[str, Timm] = {
    "beit": _sized("beit_base_patch16_224", depth=2, embed_dim=96, num_heads=3, init_values=0.1),
    "byoanet": _sized("lambda_resnet26rpt_256", 128),
    "byobnet": _plain("gcresnext26ts"),
    "cait": _sized("cait_xxs24_224", depth=2, embed_dim=96, num_heads=3),
    "coat": _sized("coat_lite_tiny"),
    "convit": _sized("convit_tiny", depth=4, local_up_to_layer=2),
    "convmixer": _plain("convmixer.ConvMixer", 56, dim=96, depth=3),
    "convnext": _plain("convnext_atto", depths=(1, 1, 2, 1)),
    "convnextv2": _plain("convnextv2_atto", depths=(1, 1, 2, 1)),
    "cpubone": _plain("cpubone_nano"),
    "crossvit": _sized("crossvit_9_240", 240),
    "csatv2": _plain("csatv2", 128),
    "cspnet": _plain("cspresnet50"),
    "cspnext": _plain("cspnext_tiny"),
    "davit": _plain("davit_tiny", 64, depths=(1, 1, 1, 1)),
    "deepseek_vit": _sized("deepseek_vit_412m", 56, depth=2, embed_dim=96, num_heads=3),
    "deit": _sized("deit3_small_patch16_224", depth=2, embed_dim=96, num_heads=3),
    "densenet": _plain("densenet121", block_config=(2, 2, 2, 2)),
    "dla": _plain("dla46_c"),
    "dpn": _plain("dpn48b"),
    "edgenext": _plain("edgenext_xx_small"),
    "efficientformer": _plain("efficientformer_l1", 224),
    "efficientformer_v2": _sized("efficientformerv2_s0"),
    "efficientnet": _plain("efficientnet_lite0"),
    "efficientvim": _plain("efficientvim_m1"),
    "efficientvit_mit": _plain("efficientvit_b0"),
    "efficientvit_msra": _sized("efficientvit_m0", 128),
    "eva": _sized("eva02_tiny_patch14_224", 56, depth=2),
    "fasternet": _plain("fasternet_t0"),
    "fastvit": _plain("fastvit_t8"),
    "focalnet": _plain("focalnet.FocalNet", depths=(1, 1, 2, 1), embed_dim=32),
    "gcvit": _sized(
        "gcvit.GlobalContextVit",
        64,
        window_size=(2, 2, 2, 2),
        depths=(1, 1, 2, 1),
        num_heads=(2, 4, 8, 16),
        embed_dim=32,
    ),
    "gemma4_vit": _sized("gemma4_vit_167m", 48, depth=2, embed_dim=96, num_heads=3),
    "ghostnet": _plain("ghostnet_050"),
    "hardcorenas": _plain("hardcorenas_a"),
    "hgnet": _plain("hgnetv2_b0"),
    "hiera": _sized("hiera_tiny_224", stages=(1, 1, 2, 1)),
    "hieradet_sam2": _plain("hieradet_small", stages=(1, 1, 2, 1), global_att_blocks=(3,)),
    "hrnet": _plain("hrnet_w18_small"),
    "iformer": _plain("iformer_t"),
    "inception_next": _plain("inception_next_atto"),
    "inception_resnet_v2": _plain("inception_resnet_v2", 75),
    "inception_v3": _plain("inception_v3", 75),
    "inception_v4": _plain("inception_v4", 75),
    "lcnetv2": _plain("lcnetv2_small"),
    "levit": _sized("levit_128s"),
    "lowformer": _plain("lowformer_b0"),
    "mambaout": _plain("mambaout_femto", depths=(1, 1, 2, 1)),
    "maxxvit": _sized("maxvit_pico_rw_256"),
    "coatnet": _sized("coatnet_pico_rw_224"),
    "metaformer": _plain("caformer_s18"),
    "poolformer": _plain("metaformer.MetaFormer", depths=(1, 1, 2, 1), dims=(32, 64, 96, 128)),
    "mlp_mixer": _sized("mlp_mixer.MlpMixer", 64, num_blocks=2, embed_dim=96),
    "gmlp": _sized("gmlp_ti16_224"),
    "mobilenetv3": _plain("mobilenetv3_small_050"),
    "mobilenetv4": _plain("mobilenetv4_hybrid_medium_075"),
    "mobilenetv5": _plain("mobilenetv5_base", 128),
    "mobilevit": _plain("mobilevit_xxs"),
    "mobilevitv2": _plain("mobilevitv2_050"),
    "mvitv2": _sized("mvitv2_tiny"),
    "naflexvit": _plain("naflexvit_base_patch16_gap", depth=2, embed_dim=96, num_heads=3),
    "nasnet": _plain("nasnet.NASNetALarge", 75, num_features=768),
    "nest": _sized(
        "nest.Nest", 64, embed_dims=(32, 64, 128), num_heads=(1, 2, 4), depths=(1, 1, 2)
    ),
    "nextvit": _plain("nextvit_small", depths=(1, 1, 5, 1)),
    "nfnet": _plain("nf_resnet26"),
    "pit": _sized("pit_ti_224", depth=(1, 1, 1)),
    "pnasnet": _plain("pnasnet5large", 75),
    "pvt_v2": _plain("pvt_v2_b0"),
    "qwen3_vit": _sized("qwen3_vit_88m", depth=2, embed_dim=96, num_heads=3),
    "rdnet": _plain("rdnet_tiny"),
    "regnet": _plain("regnety_002"),
    "repghost": _plain("repghostnet_050"),
    "repvit": _plain("repvit_m0_9"),
    "res2net": _plain("res2net50_14w_8s", layers=(1, 1, 1, 1)),
    "resnest": _plain("resnest14d"),
    "resnet": _plain("resnet26"),
    "resnext": _plain("resnext50_32x4d", layers=(1, 1, 1, 1)),
    "resnetv2": _plain("resnetv2_18"),
    "rexnet": _plain("rexnet_100"),
    "selecsls": _plain("selecsls42"),
    "senet": _plain("legacy_seresnext26_32x4d", layers=(1, 1, 1, 1)),
    "sequencer": _sized("sequencer2d_s", layers=(1, 1, 1, 1)),
    "shvit": _plain("shvit_s1", 128),
    "sknet": _plain("skresnet18"),
    "starnet": _plain("starnet_s050"),
    "swiftformer": _sized("swiftformer_xs"),
    "swin_transformer": _sized(
        "swin_tiny_patch4_window7_224", 64, depths=(2, 2), num_heads=(3, 6), window_size=4
    ),
    "swin_transformer_v2": _sized(
        "swinv2_tiny_window8_256", 64, depths=(2, 2), num_heads=(3, 6), window_size=4
    ),
    "swin_transformer_v2_cr": _sized(
        "swinv2_cr_tiny_224", 64, depths=(2, 2), num_heads=(3, 6), window_size=4
    ),
    "tiny_vit": _plain("tiny_vit_5m_224", depths=(1, 1, 2, 1)),
    "tnt": _sized("tnt_s_legacy_patch16_224", 64, depth=2),
    "tresnet": _plain("tresnet_m", layers=(1, 1, 1, 1)),
    "twins": _sized("twins_svt_small", depths=(1, 1, 2, 1)),
    "vgg": _plain("vgg.VGG", 32, cfg=(16, "M", 32, "M", 64, 64, "M", 96, 96, "M"), mlp_ratio=0.25),
    "visformer": _sized("visformer_tiny"),
    "vision_transformer": _sized("vit_tiny_patch16_224", depth=2),
    "vision_transformer_hybrid": _sized("vit_tiny_r_s16_p8_224", depth=2),
    "vision_transformer_relpos": _sized(
        "vit_relpos_small_patch16_224", depth=2, embed_dim=96, num_heads=3
    ),
    "vision_transformer_sam": _sized(
        "samvit_base_patch16_224", depth=2, embed_dim=96, num_heads=3, global_attn_indexes=(1,)
    ),
    "vitamin": _sized("vitamin_small_224"),
    "volo": _sized(
        "volo.VOLO", 64, layers=(1, 1, 1, 1), embed_dims=(48, 96, 96, 96), num_heads=(2, 4, 4, 4)
    ),
    "vovnet": _plain("ese_vovnet19b_slim_dw"),
    "xception": _plain("xception", 71),
    "xception_aligned": _plain("xception41", 64),
    "xcit": _sized("xcit_nano_12_p16_224", 64, depth=2),
}
