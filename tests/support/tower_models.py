"""Tiny models with towers for images or sound, on meta or with random weights."""

from __future__ import annotations

from tiny_models import TEXT, VISION, build_class
from transformers import PreTrainedModel

_AUDIO = {
    "num_mel_bins": 8,
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "max_source_positions": 8,
}
_GRID = {"depth": 2, "num_heads": 4, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}
_MROPE = {"rope_type": "default", "mrope_section": [1, 1, 2]}
IMAGE_ID = 95

TOWERS: dict[str, tuple[str, dict[str, object]]] = {
    "gemma3_mm": (
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {**TEXT, "head_dim": 8, "sliding_window": 16},
            "vision_config": VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": IMAGE_ID,
        },
    ),
    "idefics": (
        "IdeficsForVisionText2Text",
        {
            **TEXT,
            "num_hidden_layers": 4,
            "cross_layer_interval": 2,
            "vision_config": {
                "embed_dim": 32,
                "image_size": 16,
                "patch_size": 8,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
        },
    ),
    "internvl": (
        "InternVLForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {**VISION, "image_size": [16, 16], "patch_size": [8, 8]},
            "image_token_id": IMAGE_ID,
            "downsample_ratio": 0.5,
        },
    ),
    "llama4_mm": (
        "Llama4ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "intermediate_size_mlp": 64,
                "head_dim": 8,
                "num_local_experts": 2,
                "attention_chunk_size": 32,
            },
            "vision_config": {
                **VISION,
                "patch_size": 4,
                "intermediate_size": 128,
                "vision_output_dim": 32,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
                "pixel_shuffle_ratio": 0.5,
            },
            "image_token_index": IMAGE_ID,
        },
    ),
    "llava": (
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {"model_type": "clip_vision_model", **VISION},
            "image_token_index": IMAGE_ID,
        },
    ),
    "mllama": (
        "MllamaForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "cross_attention_layers": [1],
                "rope_parameters": {"rope_type": "default"},
            },
            "vision_config": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_global_layers": 1,
                "attention_heads": 4,
                "intermediate_size": 64,
                "vision_output_dim": 64,
                "image_size": 16,
                "patch_size": 8,
                "max_num_tiles": 2,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
            },
            "image_token_index": IMAGE_ID,
        },
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": {**TEXT, "rope_parameters": _MROPE},
            "vision_config": {
                **_GRID,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "window_size": 16,
                "fullatt_block_indexes": [1],
                "image_size": 24,
            },
            "image_token_id": IMAGE_ID,
        },
    ),
    "qwen2_audio": (
        "Qwen2AudioForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "audio_config": {"model_type": "qwen2_audio_encoder", **_AUDIO},
            "audio_token_index": IMAGE_ID,
        },
    ),
    "qwen2_vl": (
        "Qwen2VLForConditionalGeneration",
        {
            "text_config": {**TEXT, "rope_parameters": _MROPE},
            "vision_config": {**_GRID, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "image_size": 24},
            "image_token_id": IMAGE_ID,
        },
    ),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": {**TEXT, "head_dim": 8, "rope_parameters": _MROPE},
            "vision_config": {
                **_GRID,
                "hidden_size": 32,
                "intermediate_size": 64,
                "out_hidden_size": 32,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            },
            "image_token_id": IMAGE_ID,
        },
    ),
    "voxtral": (
        "VoxtralForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT, "head_dim": 8},
            "audio_config": {
                "num_mel_bins": 8,
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "max_source_positions": 8,
            },
            "audio_token_id": IMAGE_ID,
        },
    ),
}


def build_tower(name: str, *, on_meta: bool = True) -> PreTrainedModel:
    """Return a model of `TOWERS` in eval mode and fp32."""
    class_name, values = TOWERS[name]
    return build_class(class_name, values, on_meta=on_meta)
