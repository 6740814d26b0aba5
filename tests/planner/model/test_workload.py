from __future__ import annotations

import pytest
from transformers import (
    BartConfig,
    Gemma3Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
    WhisperConfig,
)

from bayplan.planner.model.workload import make_workload, max_context, max_encoder_context
from bayplan.schemas.dtypes import DtypeError
from bayplan.schemas.errors import UsageError
from bayplan.schemas.plan import Workload


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LlamaConfig(max_position_embeddings=4096), 4096),
        (GPT2Config(n_positions=1024), 1024),
        (MambaConfig(), None),
        (T5Config(n_positions=512), None),
        (RobertaConfig(max_position_embeddings=514, pad_token_id=1), 512),
        (WhisperConfig(max_target_positions=448), 448),
        (Gemma3Config(text_config={"max_position_embeddings": 2048}), 2048),
    ],
    ids=lambda value: type(value).__name__,
)
def test_max_context(config: PreTrainedConfig, expected: int | None) -> None:
    assert max_context(config) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (WhisperConfig(max_source_positions=1500), 1500),
        (BartConfig(max_position_embeddings=1024), 1024),
        (T5Config(n_positions=512), 512),
        (T5Config(), None),
        (T5Config(n_positions=10**30), None),
    ],
    ids=["whisper", "bart", "t5", "t5 without positions", "t5 without a limit"],
)
def test_max_encoder_context(config: PreTrainedConfig, expected: int | None) -> None:
    assert max_encoder_context(config) == expected


def test_defaults() -> None:
    workload, warnings = make_workload(LlamaConfig(max_position_embeddings=4096), dtype="bfloat16")
    assert workload == Workload(
        batch=1, context=1024, encoder_context=None, prefill_chunk=1024, kv_dtype="bf16", logits="last"
    )
    assert warnings == ()


def test_a_short_model_is_planned_for_its_maximum() -> None:
    workload, _ = make_workload(GPT2Config(n_positions=128), dtype="fp32")
    assert (workload.context, workload.prefill_chunk) == (128, 128)


def test_a_module_without_config() -> None:
    workload, _ = make_workload(None, dtype="fp32")
    assert (workload.context, workload.encoder_context) == (1024, None)


def test_encoder_decoder_defaults() -> None:
    workload, warnings = make_workload(WhisperConfig(), dtype="fp32")
    assert (workload.context, workload.encoder_context, warnings) == (448, 1500, ())


def test_an_encoder_without_limit_takes_the_decoders_context() -> None:
    workload, _ = make_workload(T5Config(), context=33, dtype="fp32")
    assert workload.encoder_context == 33


def test_too_long_contexts_are_clamped_with_a_warning() -> None:
    workload, warnings = make_workload(
        BartConfig(max_position_embeddings=64),
        context=100,
        encoder_context=200,
        prefill_chunk=300,
        dtype="fp32",
    )
    assert (workload.context, workload.encoder_context, workload.prefill_chunk) == (64, 64, 64)
    assert warnings == (
        "--context 100 is more than the model's maximum: planned for 64",
        "--prefill-chunk 300 is more than the context: planned for 64",
        "--encoder-context 200 is more than the model's maximum: planned for 64",
    )


@pytest.mark.parametrize(
    ("option", "keyword"),
    [
        ("--batch", "batch"),
        ("--context", "context"),
        ("--encoder-context", "encoder_context"),
        ("--prefill-chunk", "prefill_chunk"),
    ],
)
def test_counts_must_be_positive(option: str, keyword: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_workload(BartConfig(), dtype="fp32", **{keyword: 0})
    assert str(caught.value) == f"{option}: a count must be positive: got 0, needed 1 or more"


def test_counts_beyond_any_machine() -> None:
    with pytest.raises(UsageError) as caught:
        make_workload(BartConfig(), dtype="fp32", batch=10**20)
    assert str(caught.value) == "--batch: a count is out of reach: needed at most 2147483648"


def test_encoder_context_without_encoder() -> None:
    with pytest.raises(UsageError) as caught:
        make_workload(LlamaConfig(), encoder_context=8, dtype="fp32")
    assert str(caught.value) == (
        "--encoder-context: the model has no encoder beside its decoder\nhint: leave the option out"
    )


def test_unknown_dtype() -> None:
    with pytest.raises(DtypeError) as caught:
        make_workload(LlamaConfig(), dtype="fp33")
    assert caught.value.got == '"fp33"'
