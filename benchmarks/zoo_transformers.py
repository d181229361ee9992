"""transformers' part of the zoo: tiny configurations of architectures, weights at random.

An entry names the model's class (its configuration's class is the model's own), what is passed to
the configuration, and what the model is called with.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

WORDS = 96
LENGTH = 12

#: What is said to a configuration that knows such a word, and is not told otherwise.
TINY: Mapping[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "decoder_start_token_id": 1,
    "use_cache": False,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
_IMAGE: Mapping[str, Any] = {"image_size": 32, "patch_size": 8, "num_labels": 10}
_SPEECH: Mapping[str, Any] = {
    "conv_dim": (32, 32, 32),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 3,
    "output_hidden_size": 64,
}


@dataclass(frozen=True)
class Pretrained:
    """One architecture: the model's class, its configuration, the kind of its inputs.

    A word of the configuration that is ``...`` is left to transformers.

    ``inputs`` maps the names of arguments to their shapes: those of numbers as they are, those of
    words after ``ids``, of ones after ``ones``.
    """

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    call: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> "tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]":
        """The model with its weights as transformers draws them, and its arguments."""
        import torch
        import transformers

        kind = getattr(transformers, self.model)
        known = kind.config_class()
        given = {name: value for name, value in TINY.items() if hasattr(known, name)}
        given |= self.config
        config = kind.config_class(**{k: v for k, v in given.items() if v is not ...})
        model = kind(config)
        arguments: dict[str, Any] = {}
        for name, (form, *shape) in self.inputs.items():
            if form == "ids":
                arguments[name] = torch.randint(3, WORDS, shape)
            elif form == "ones":
                arguments[name] = torch.ones(shape, dtype=torch.int64)
            else:
                arguments[name] = torch.randn(shape)
        return _Tensors(model, dict(self.call)), (), arguments


def _Tensors(model: "torch.nn.Module", call: dict[str, Any]) -> "torch.nn.Module":  # noqa: N802
    """``model`` giving its floating-point results alone, in order, without caches."""
    import torch
    from torch.utils import _pytree as pytree

    class Tensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, **arguments: Any) -> Any:
            given = self.model(**arguments, **call)
            if hasattr(given, "to_tuple"):
                given = given.to_tuple()
            leaves = pytree.tree_leaves(given)
            return tuple(
                leaf
                for leaf in leaves
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            )

    return Tensors()


def _words(model: str, **config: Any) -> Pretrained:
    inputs = {"input_ids": ("ids", 1, LENGTH)}
    return Pretrained(model, config, inputs)


def _masked(model: str, **config: Any) -> Pretrained:
    inputs = {"input_ids": ("ids", 2, LENGTH), "attention_mask": ("ones", 2, LENGTH)}
    return Pretrained(model, config, inputs)


def _experts(model: str, **config: Any) -> Pretrained:
    return _words(model, **{**_EXPERTS, **config})


def _both(model: str, length: int = LENGTH, **config: Any) -> Pretrained:
    inputs = {"input_ids": ("ids", 1, length), "decoder_input_ids": ("ids", 1, 8)}
    return Pretrained(model, config, inputs)


def _image(model: str, side: int = 32, **config: Any) -> Pretrained:
    inputs = {"pixel_values": ("float", 1, 3, side, side)}
    return Pretrained(model, {**_IMAGE, "image_size": side, **config}, inputs)


def _speech(model: str, **config: Any) -> Pretrained:
    inputs = {"input_values": ("float", 1, 1600)}
    return Pretrained(model, {**_SPEECH, **config}, inputs)


_T5 = {"d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}

MODELS: Mapping[str, Pretrained] = {
    # Encoders of text
    "bert": _masked("BertModel"),
    "roberta": _masked("RobertaForMaskedLM"),
    "distilbert": _masked("DistilBertModel", dim=64, n_layers=2, n_heads=4, hidden_dim=96),
    "albert": _masked("AlbertModel", embedding_size=32),
    "electra": _masked("ElectraForSequenceClassification", embedding_size=32),
    "deberta": _masked("DebertaModel", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta_v2": _masked("DebertaV2Model", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "mpnet": _masked("MPNetModel"),
    "mobilebert": _masked("MobileBertModel", embedding_size=32, intra_bottleneck_size=32),
    "squeezebert": _masked("SqueezeBertModel", embedding_size=64),
    "convbert": _masked("ConvBertModel", embedding_size=64),
    "funnel": _masked(
        "FunnelModel",
        num_hidden_layers=...,
        d_model=64,
        n_head=4,
        d_head=16,
        d_inner=96,
        block_sizes=[1, 1],
        num_decoder_layers=1,
    ),
    "fnet": _words("FNetModel"),
    "big_bird": _masked("BigBirdModel", attention_type="original_full"),
    "nystromformer": _words("NystromformerModel", num_landmarks=4, segment_means_seq_len=LENGTH),
    "xlnet": _words("XLNetModel", max_position_embeddings=..., n_layer=2, n_head=4, d_inner=96),
    "xlm": _masked("XLMModel", emb_dim=64, n_layers=2, n_heads=4),
    "layoutlm": _masked("LayoutLMModel"),
    "rembert": _masked("RemBertModel", input_embedding_size=32, output_embedding_size=32),
    "ibert": _masked("IBertModel", quant_mode=False),
    "roformer": _masked("RoFormerModel", embedding_size=64),
    "modernbert": _masked("ModernBertModel"),
    "canine": Pretrained("CanineModel", {}, {"input_ids": ("ids", 1, 32)}),
    "esm": _masked("EsmModel", position_embedding_type="rotary", mask_token_id=3),
    "longformer": Pretrained(
        "LongformerModel", {"attention_window": [8, 8]}, {"input_ids": ("ids", 1, 16)}
    ),
    # Decoders of text
    "gpt2": _masked("GPT2LMHeadModel", n_embd=64, n_layer=2, n_head=4, n_positions=64),
    "gpt_neo": _words(
        "GPTNeoModel", num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
    ),
    "gpt_neox": _words("GPTNeoXForCausalLM"),
    "gptj": _words("GPTJModel", n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "gpt_bigcode": _words("GPTBigCodeModel", n_embd=64, n_layer=2, n_head=4),
    "opt": _words("OPTForCausalLM", ffn_dim=96, word_embed_proj_dim=64),
    "bloom": _masked("BloomModel", n_layer=2, n_head=4),
    "llama": _masked("LlamaForCausalLM"),
    "mistral": _words("MistralForCausalLM", sliding_window=8),
    "qwen2": _words("Qwen2ForCausalLM"),
    "qwen3": _words("Qwen3ForCausalLM"),
    "phi": _words("PhiForCausalLM"),
    "phi3": _words("Phi3ForCausalLM"),
    "gemma2": _words("Gemma2ForCausalLM"),
    "gemma3": _words("Gemma3ForCausalLM", sliding_window=8),
    "falcon": _words("FalconModel", head_dim=...),
    "mpt": _words("MptModel", n_layers=2, n_heads=4, max_seq_len=64),
    "stablelm": _words("StableLmModel"),
    "starcoder2": _words("Starcoder2Model"),
    "olmo2": _words("Olmo2Model"),
    "cohere": _words("CohereModel"),
    "granite": _words("GraniteModel"),
    "nemotron": _words("NemotronModel"),
    "persimmon": _words("PersimmonModel"),
    "codegen": _words("CodeGenModel", n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "xglm": _words("XGLMModel", num_layers=2, attention_heads=4, ffn_dim=96),
    "ctrl": _words("CTRLModel", n_embd=64, n_layer=2, n_head=4, dff=96),
    "smollm3": _words("SmolLM3Model"),
    "glm4": _words("Glm4Model"),
    "diffllama": _words("DiffLlamaModel"),
    "bitnet": _words("BitNetModel"),
    # Mixtures of experts
    "mixtral": _experts("MixtralForCausalLM"),
    "qwen2_moe": _experts("Qwen2MoeModel"),
    "qwen3_moe": _experts("Qwen3MoeModel"),
    "olmoe": _experts("OlmoeModel"),
    "phimoe": _experts("PhimoeModel"),
    "granitemoe": _experts("GraniteMoeModel"),
    "gpt_oss": _experts("GptOssModel", sliding_window=8),
    "deepseek_v2": _experts(
        "DeepseekV2Model",
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        head_dim=8,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        num_key_value_heads=4,
    ),
    "deepseek_v3": _experts(
        "DeepseekV3Model",
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        head_dim=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        num_key_value_heads=4,
    ),
    "switch_transformers": _both(
        "SwitchTransformersModel",
        **_T5,
        num_experts=4,
        num_sparse_encoder_layers=1,
        num_sparse_decoder_layers=1,
    ),
    # State space and recurrent
    "mamba": _words("MambaModel", state_size=8, time_step_rank=4),
    "mamba2": _words(
        "Mamba2Model", state_size=8, num_heads=8, head_dim=16, n_groups=2, chunk_size=8
    ),
    "falcon_mamba": _words("FalconMambaModel", state_size=8, time_step_rank=4),
    "rwkv": _words("RwkvModel", attention_hidden_size=64, context_length=64),
    "recurrent_gemma": _words(
        "RecurrentGemmaModel", num_hidden_layers=3, lru_width=64, attention_window_size=16
    ),
    "jamba": _experts(
        "JambaModel",
        mamba_d_state=8,
        mamba_dt_rank=4,
        attn_layer_period=2,
        attn_layer_offset=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        use_mamba_kernels=False,
    ),
    "bamba": _words(
        "BambaModel",
        mamba_n_heads=8,
        mamba_d_head=16,
        mamba_d_state=8,
        mamba_n_groups=1,
        mamba_chunk_size=8,
        attn_layer_indices=[1],
    ),
    "lfm2": _words("Lfm2Model", layer_types=["conv", "full_attention"]),
    "qwen3_next": _experts(
        "Qwen3NextModel",
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        layer_types=["linear_attention", "full_attention"],
    ),
    # Encoders and decoders of text
    "t5": _both("T5Model", **_T5),
    "umt5": _both("UMT5Model", **_T5),
    "longt5": _both("LongT5Model", 16, **_T5, local_radius=3),
    "bart": _both("BartForConditionalGeneration"),
    "mbart": _both("MBartModel"),
    "pegasus": _both("PegasusModel"),
    "marian": _both("MarianModel"),
    "blenderbot": _both("BlenderbotModel"),
    "m2m_100": _both("M2M100Model"),
    "prophetnet": _both(
        "ProphetNetModel",
        num_hidden_layers=...,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
        disable_ngram_loss=True,
    ),
    # Vision
    "vit": _image("ViTForImageClassification"),
    "deit": _image("DeiTModel"),
    "beit": _image("BeitModel", layer_scale_init_value=0.1, use_relative_position_bias=True),
    "swin": _image(
        "SwinForImageClassification",
        num_hidden_layers=...,
        num_attention_heads=...,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "swinv2": _image(
        "Swinv2Model",
        num_hidden_layers=...,
        num_attention_heads=...,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": _image(
        "ConvNextModel",
        num_hidden_layers=...,
        patch_size=4,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 2, 1],
    ),
    "convnextv2": _image(
        "ConvNextV2Model",
        num_hidden_layers=...,
        patch_size=4,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 2, 1],
    ),
    "dinov2": _image("Dinov2Model"),
    "dinov3_vit": _image("DINOv3ViTModel"),
    "resnet": _image(
        "ResNetForImageClassification",
        64,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        embedding_size=32,
    ),
    "regnet": _image(
        "RegNetModel",
        64,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        embedding_size=32,
        groups_width=16,
    ),
    "mobilenet_v1": _image("MobileNetV1Model", 64, depth_multiplier=0.25),
    "mobilenet_v2": _image("MobileNetV2Model", 64, depth_multiplier=0.25),
    "mobilevit": _image(
        "MobileViTModel",
        64,
        hidden_sizes=[32, 48, 64],
        neck_hidden_sizes=[8, 16, 24, 32, 48, 64, 96],
        patch_size=2,
    ),
    "segformer": _image(
        "SegformerForSemanticSegmentation",
        64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=32,
        patch_sizes=[7, 3, 3, 3],
    ),
    "pvt": _image(
        "PvtModel",
        64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        patch_sizes=[4, 2, 2, 2],
    ),
    "poolformer": _image("PoolFormerModel", 64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1]),
    "levit": _image(
        "LevitModel",
        64,
        patch_size=16,
        hidden_sizes=[32, 48, 64],
        depths=[1, 1, 1],
        num_attention_heads=[2, 3, 4],
        key_dim=[16, 16, 16],
    ),
    "dpt": _image(
        "DPTForDepthEstimation",
        neck_hidden_sizes=[16, 16, 32, 32],
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        fusion_hidden_size=16,
        patch_size=16,
    ),
    "glpn": _image(
        "GLPNForDepthEstimation",
        64,
        hidden_sizes=[16, 32, 48, 64],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 3, 4],
        decoder_hidden_size=16,
    ),
    "yolos": _image("YolosForObjectDetection", image_size=[32, 32], num_detection_tokens=5),
    "vit_msn": _image("ViTMSNModel"),
    "focalnet": _image(
        "FocalNetModel",
        64,
        embed_dim=16,
        depths=[1, 1],
        focal_levels=[2, 2],
        focal_windows=[3, 3],
        hidden_sizes=[16, 32],
    ),
    "efficientnet": _image(
        "EfficientNetModel", 64, width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320
    ),
    "bit": _image(
        "BitModel",
        64,
        hidden_sizes=[32, 64, 96, 128],
        depths=[1, 1, 1, 1],
        embedding_size=32,
        num_groups=8,
    ),
    "vitdet": _image("VitDetModel", 64, window_block_indices=[0], window_size=4),
    "videomae": Pretrained(
        "VideoMAEModel", {**_IMAGE, "num_frames": 4}, {"pixel_values": ("float", 1, 4, 3, 32, 32)}
    ),
    "siglip_vision": _image("SiglipVisionModel"),
    "sam_vision": _image(
        "SamVisionModel", 64, output_channels=32, window_size=4, global_attn_indexes=[1], mlp_dim=96
    ),
    "swin2sr": _image(
        "Swin2SRForImageSuperResolution",
        hidden_size=...,
        num_hidden_layers=...,
        num_attention_heads=...,
        embed_dim=24,
        depths=[2],
        num_heads=[3],
        window_size=4,
        patch_size=1,
        upscale=2,
    ),
    "clip": Pretrained(
        "CLIPModel",
        {
            "text_config": {**TINY},
            "vision_config": {**TINY, **_IMAGE},
            "projection_dim": 32,
        },
        {
            "input_ids": ("ids", 1, LENGTH),
            "pixel_values": ("float", 1, 3, 32, 32),
            "attention_mask": ("ones", 1, LENGTH),
        },
    ),
    "vilt": Pretrained(
        "ViltModel",
        {**_IMAGE},
        {
            "input_ids": ("ids", 1, LENGTH),
            "pixel_values": ("float", 1, 3, 32, 32),
        },
    ),
    # Speech and sound
    "wav2vec2": _speech("Wav2Vec2ForCTC"),
    "hubert": _speech("HubertModel"),
    "wavlm": _speech("WavLMModel"),
    "sew": _speech("SEWModel", squeeze_factor=2),
    "unispeech": _speech("UniSpeechModel"),
    "data2vec_audio": _speech(
        "Data2VecAudioModel", conv_pos_kernel_size=3, num_conv_pos_embeddings=2
    ),
    "wav2vec2_conformer": _speech("Wav2Vec2ConformerModel", position_embeddings_type="relative"),
    "wav2vec2_bert": Pretrained(
        "Wav2Vec2BertModel",
        {"feature_projection_input_dim": 32, "output_hidden_size": 64},
        {"input_features": ("float", 1, 20, 32)},
    ),
    "whisper": Pretrained(
        "WhisperForConditionalGeneration",
        {
            "num_mel_bins": 16,
            "max_source_positions": 20,
            "max_target_positions": 20,
            "begin_suppress_tokens": None,
        },
        {"input_features": ("float", 1, 16, 40), "decoder_input_ids": ("ids", 1, 8)},
    ),
    "speech_to_text": Pretrained(
        "Speech2TextModel",
        {
            "input_feat_per_channel": 16,
            "conv_channels": 32,
            "max_source_positions": 40,
            "max_target_positions": 20,
        },
        {"input_features": ("float", 1, 40, 16), "decoder_input_ids": ("ids", 1, 8)},
    ),
    "audio_spectrogram": Pretrained(
        "ASTModel", {"max_length": 32, "num_mel_bins": 32}, {"input_values": ("float", 1, 32, 32)}
    ),
    "encodec": Pretrained(
        "EncodecModel",
        {
            "num_filters": 8,
            "hidden_size": 32,
            "upsampling_ratios": [4, 2],
            "codebook_size": 32,
            "codebook_dim": 32,
            "num_lstm_layers": 1,
        },
        {"input_values": ("float", 1, 1, 320)},
    ),
    "univnet": Pretrained(
        "UnivNetModel",
        {
            "model_in_channels": 16,
            "model_hidden_channels": 16,
            "num_mel_bins": 16,
            "kernel_predictor_hidden_channels": 16,
        },
        {"input_features": ("float", 1, 8, 16), "noise_sequence": ("float", 1, 8, 16)},
    ),
    "moonshine": Pretrained(
        "MoonshineModel",
        {
            "encoder_num_hidden_layers": 2,
            "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 4,
            "decoder_num_attention_heads": 4,
        },
        {"input_values": ("float", 1, 2000), "decoder_input_ids": ("ids", 1, 8)},
    ),
    # Series and decisions
    "patchtst": Pretrained(
        "PatchTSTModel",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 32,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
        },
        {"past_values": ("float", 1, 32, 3)},
    ),
    "patchtsmixer": Pretrained(
        "PatchTSMixerModel",
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 16,
            "num_layers": 2,
        },
        {"past_values": ("float", 1, 32, 3)},
    ),
}
