from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from executor_models import LAYERS, TOKENS, reference, save, save_llama
from plan_maker import changed, make_plan
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from bayplan.executor.errors import (
    KeptOutputsError,
    ReleasedError,
    StreamError,
    ThreadStartError,
    TiedTensorsDifferError,
)
from bayplan.executor.load import load_model, loaded, release
from bayplan.executor.reader import ShardReader
from bayplan.executor.report import report
from bayplan.executor.state import _refuse_call, state_of
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import PlanRefused, UsageError
from bayplan.schemas.plan import ALIGNMENT_BYTES, Plan

MASK = torch.ones_like(TOKENS)


def assert_same_tensors(got: nn.Module, expected: nn.Module) -> None:
    """Compare names, values, dtypes and ties of parameters and buffers."""
    for listed in ("named_parameters", "named_buffers"):
        theirs = dict(getattr(expected, listed)(remove_duplicate=False))
        ours = dict(getattr(got, listed)(remove_duplicate=False))
        assert list(ours) == list(theirs)
        for fqn, tensor in theirs.items():
            assert ours[fqn].dtype == tensor.dtype, fqn
            assert torch.equal(ours[fqn], tensor), fqn
    names = [fqn for fqn, _ in expected.named_parameters()]
    assert [fqn for fqn, _ in got.named_parameters()] == names


def outputs(model: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        logits = model(TOKENS, attention_mask=MASK, **options).logits
        tokens = model.generate(TOKENS, attention_mask=MASK, max_new_tokens=12, do_sample=False)
    return logits, tokens


def test_resident_model_equals_that_of_transformers(llama: Path) -> None:
    expected = reference(LlamaForCausalLM, llama)
    with loaded(make_plan(llama), llama) as model:
        assert_same_tensors(model, expected)
        assert type(model) is LlamaForCausalLM
        assert not model.training
        assert model.generation_config == expected.generation_config
        for got, wanted in zip(outputs(model), outputs(expected), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("stream", "num_slots"),
    [
        (LAYERS, 2),
        (LAYERS, 3),
        (LAYERS, 1),
        (LAYERS, 5),
        (LAYERS[1:4], 2),
        (LAYERS[:1], 2),
        ((*LAYERS, "lm_head"), 2),
        (("model.embed_tokens", *LAYERS, "model.norm", "lm_head"), 3),
    ],
)
def test_streamed_model_equals_that_of_transformers(
    llama: Path, stream: tuple[str, ...], num_slots: int
) -> None:
    expected = reference(LlamaForCausalLM, llama)
    with loaded(make_plan(llama, stream=stream, num_slots=num_slots), llama) as model:
        for _ in range(2):
            for got, wanted in zip(outputs(model), outputs(expected), strict=True):
                assert torch.equal(got, wanted)
        assert report(model).honoured


@pytest.mark.parametrize("stream", [(), LAYERS, LAYERS[::2]])
def test_tied_and_sharded_model(sharded_llama: Path, stream: tuple[str, ...]) -> None:
    expected = reference(LlamaForCausalLM, sharded_llama)
    with loaded(make_plan(sharded_llama, stream=stream), sharded_llama) as model:
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert model.dtype == torch.bfloat16
        if not stream:
            assert_same_tensors(model, expected)
        for got, wanted in zip(outputs(model), outputs(expected), strict=True):
            assert torch.equal(got, wanted)


@pytest.mark.parametrize("stream", [(), LAYERS])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_other_data_type_than_the_checkpoint(
    llama: Path, sharded_llama: Path, stream: tuple[str, ...], dtype: str
) -> None:
    folder = sharded_llama if dtype == "fp32" else llama
    expected = reference(LlamaForCausalLM, folder, dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)
    with loaded(make_plan(folder, stream=stream, dtype=dtype), folder) as model:
        if not stream:
            assert_same_tensors(model, expected)
        for got, wanted in zip(outputs(model), outputs(expected), strict=True):
            assert torch.equal(got, wanted)


def test_model_with_two_stacks(tmp_path: Path) -> None:
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=1,
    )  # fmt: skip
    save(T5ForConditionalGeneration, config, tmp_path)
    expected = reference(T5ForConditionalGeneration, tmp_path)
    stream = tuple(f"{stack}.block.{layer}" for stack in ("encoder", "decoder") for layer in range(3))
    tokens = TOKENS % 64
    plan = make_plan(tmp_path, stream=stream, num_slots=2)
    with loaded(plan, tmp_path) as model, torch.no_grad():
        for each in range(2):
            wanted = expected.generate(tokens[each : each + 1], max_new_tokens=8, do_sample=False)
            assert torch.equal(
                model.generate(tokens[each : each + 1], max_new_tokens=8, do_sample=False), wanted
            )
        assert report(model).honoured


def test_model_with_persistent_buffers_and_an_old_head_name(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=3, n_head=4)
    save(GPT2LMHeadModel, config, tmp_path)
    expected = reference(GPT2LMHeadModel, tmp_path)
    stream = tuple(f"transformer.h.{layer}" for layer in range(3))
    with loaded(make_plan(tmp_path, stream=stream, context=32), tmp_path) as model, torch.no_grad():
        tokens = TOKENS % 64
        assert torch.equal(model(tokens).logits, expected(tokens).logits)
        assert model.lm_head.weight is model.transformer.wte.weight


def test_model_that_does_not_generate(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48
    )
    save(BertModel, config, tmp_path)
    expected = reference(BertModel, tmp_path)
    stream = tuple(f"encoder.layer.{layer}" for layer in range(3))
    with loaded(make_plan(tmp_path, stream=stream), tmp_path) as model, torch.no_grad():
        got, wanted = model(TOKENS % 64), expected(TOKENS % 64)
        assert torch.equal(got.last_hidden_state, wanted.last_hidden_state)
        assert torch.equal(got.pooler_output, wanted.pooler_output)
        measured = report(model).measured
        assert measured.decode_ns is None
        assert measured.first_output_ns is not None


@pytest.mark.parametrize("stream", [(), LAYERS])
def test_every_bound_tensor_is_aligned_and_of_the_same_kind(
    sharded_llama: Path, stream: tuple[str, ...]
) -> None:
    expected = dict(reference(LlamaForCausalLM, sharded_llama).named_parameters())
    with loaded(make_plan(sharded_llama, stream=stream), sharded_llama) as model:
        for fqn, tensor in [*model.named_parameters(), *model.named_buffers()]:
            assert tensor.data_ptr() % ALIGNMENT_BYTES == 0, fqn
            assert not tensor.is_inference(), fqn
        for fqn, param in model.named_parameters():
            # Torch takes other kernels for weights that require no grad.
            assert param.requires_grad == expected[fqn].requires_grad, fqn
            assert type(param) is type(expected[fqn]), fqn


def test_products_of_inputs_that_are_not_contiguous_have_the_same_bits(llama: Path) -> None:
    expected = reference(LlamaForCausalLM, llama)
    with loaded(make_plan(llama, stream=LAYERS), llama) as model, torch.no_grad():
        for options in ({"logits_to_keep": 1}, {"logits_to_keep": 2}):
            assert torch.equal(model(TOKENS, **options).logits, expected(TOKENS, **options).logits)


def test_loading_in_inference_mode_gives_ordinary_tensors(llama: Path) -> None:
    with torch.inference_mode():
        model = load_model(make_plan(llama, stream=LAYERS), llama)
    assert not any(tensor.is_inference() for tensor in model.parameters())
    release(model)


def test_resident_blocks_have_no_hooks(llama: Path) -> None:
    with loaded(make_plan(llama, stream=LAYERS[1:3]), llama) as model:
        hooked = {
            fqn for fqn, module in model.named_modules() if module._forward_pre_hooks or module._forward_hooks
        }
        layers = ("model.layers.1", "model.layers.2")
        parts = ("", ".self_attn", ".mlp", ".input_layernorm", ".post_attention_layernorm")
        assert hooked == {"", *(layer + part for layer in layers for part in parts)}


def test_plan_from_a_file(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(make_plan(llama)))
    with loaded(path, str(llama), on={"cpu": "cpu"}) as model:
        assert report(model).honoured


def on_meta(folder: Path) -> Any:
    expected = reference(LlamaForCausalLM, folder)
    with torch.device("meta"):
        given = LlamaForCausalLM(expected.config)
    given.model.rotary_emb = expected.model.rotary_emb
    return given


def test_model_of_the_caller_is_filled_in_place(llama: Path) -> None:
    given = on_meta(llama)
    given.model.norm.weight.note = "kept"
    with loaded(make_plan(llama), llama, model=given) as model:
        assert model is given
        assert model.model.norm.weight.note == "kept"
        assert_same_tensors(model, reference(LlamaForCausalLM, llama))


def given_refusal(folder: Path, given: nn.Module) -> str:
    with pytest.raises(UsageError) as raised:
        load_model(make_plan(folder), folder, model=given)
    return str(raised.value)


def test_model_to_fill_that_has_weights(llama: Path) -> None:
    given = reference(LlamaForCausalLM, llama)
    before = [param.clone() for param in given.parameters()]
    assert given_refusal(llama, given) == (
        "model: the model to fill has weights: got model.embed_tokens.weight, "
        "model.layers.0.self_attn.q_proj.weight, model.layers.0.self_attn.k_proj.weight and 45 more, "
        "needed every parameter on meta\n"
        "hint: build it under bayplan.empty_weights()"
    )
    assert all(torch.equal(*pair) for pair in zip(given.parameters(), before, strict=True))


def test_model_to_fill_without_values_for_its_buffers(llama: Path) -> None:
    config = reference(LlamaForCausalLM, llama).config
    with torch.device("meta"):
        given = LlamaForCausalLM(config)
    assert given_refusal(llama, given) == (
        "model: the model to fill has buffers without values: got model.rotary_emb.inv_freq, "
        "model.rotary_emb.original_inv_freq, needed values for every buffer that is not in a checkpoint\n"
        "hint: build it under bayplan.empty_weights()"
    )


@pytest.mark.parametrize("stream", [(), LAYERS])
def test_model_to_fill_that_is_loaded(llama: Path, stream: tuple[str, ...]) -> None:
    with loaded(make_plan(llama, stream=stream), llama) as model:
        expected = outputs(model)
        assert given_refusal(llama, model) == (
            "model: the model is loaded already\n"
            "hint: release it first, or leave `model` out for a second one"
        )
        for got, wanted in zip(outputs(model), expected, strict=True):
            assert torch.equal(got, wanted)


def test_released_model_can_be_filled_again(llama: Path) -> None:
    expected = reference(LlamaForCausalLM, llama)
    model = load_model(make_plan(llama, stream=LAYERS), llama)
    for stream in ((), LAYERS):
        release(model)
        copied = copy.deepcopy(model)
        assert load_model(make_plan(llama, stream=stream), llama, model=model) is model
        for got, wanted in zip(outputs(model), outputs(expected), strict=True):
            assert torch.equal(got, wanted)
        assert report(model).honoured
        with pytest.raises(ReleasedError):
            copied(TOKENS)
        assert all(_refuse_call not in module._forward_pre_hooks.values() for module in model.modules())
    release(model)


def test_progress_ends_with_everything_read(llama: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with loaded(make_plan(llama), llama, progress=lambda *step: told.append(step)) as model:
        total = sum(param.numel() * param.element_size() for param in model.parameters())
    assert {stage for stage, _, _ in told} == {"read"}
    assert told[-1][1] == told[-1][2] >= total


def test_release_gives_the_memory_back(llama: Path) -> None:
    model = load_model(make_plan(llama, stream=LAYERS), llama)
    state = state_of(model)
    mappings = [weakref.ref(arena._region._mapping) for arena in state.arenas]
    threads = {thread.name for thread in threading.enumerate()}
    assert "bayplan-reader" in threads
    del state
    release(model)
    gc.collect()
    assert [mapping() for mapping in mappings] == [None, None]
    assert "bayplan-reader" not in {thread.name for thread in threading.enumerate()}
    assert all(param.is_meta for param in model.parameters())


def test_memory_returns_with_a_model_that_nobody_released(llama: Path) -> None:
    model = load_model(make_plan(llama, stream=LAYERS), llama)
    mappings = [weakref.ref(arena._region._mapping) for arena in state_of(model).arenas]
    reader = state_of(model).stream.ring._thread
    del model
    gc.collect()
    reader.join(60)
    assert not reader.is_alive()
    gc.collect()
    assert [mapping() for mapping in mappings] == [None, None]


def test_released_model_says_so(llama: Path) -> None:
    for stream in ((), LAYERS):
        model = load_model(make_plan(llama, stream=stream), llama)
        release(model)
        with pytest.raises(ReleasedError) as raised:
            model(TOKENS)
        assert str(raised.value) == "the model was released\nhint: load it again with load_model"
        with pytest.raises(ReleasedError):
            model.model(TOKENS)
        with pytest.raises(ReleasedError):
            model.model.layers[1](torch.zeros(1, 3, 64))
        with pytest.raises(UsageError) as usage:
            release(model)
        assert str(usage.value) == (
            "not a model that bayplan holds: got LlamaForCausalLM, "
            "needed a model from load_model that was not released"
        )


def test_failure_while_reading_leaves_nothing_behind(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = on_meta(llama)

    def fail(*_: object) -> int:
        raise MemoryError

    monkeypatch.setattr("bayplan.executor.load.read_resident", fail)
    with pytest.raises(MemoryError):
        load_model(make_plan(llama), llama, model=given)
    assert all(param.is_meta for param in given.parameters())
    assert not given._forward_pre_hooks


@pytest.mark.parametrize(("name", "what"), [("reader", "reader"), ("meter", "memory meter")])
def test_system_that_gives_no_thread(
    llama: Path, monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    given = on_meta(llama)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"bayplan-{name}":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    closed: list[str] = []
    close = ShardReader.close

    def note(reader: ShardReader) -> None:
        closed.append("reader")
        close(reader)

    monkeypatch.setattr(ShardReader, "close", note)
    with pytest.raises(ThreadStartError) as raised:
        load_model(make_plan(llama, stream=LAYERS), llama, model=given)
    assert str(raised.value) == (
        f"the {what} thread cannot be started: got can't start new thread\n"
        "hint: raise the limit of threads (ulimit -u, or the container's), or stop other processes"
    )
    assert_untouched(given)
    assert ("reader" in closed) is (name == "reader")
    assert "bayplan-meter" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("step", ["StreamGuards", "attach", "check_nothing_on_meta"])
def test_failure_after_binding_leaves_nothing_behind(
    llama: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError

    given = on_meta(llama)
    monkeypatch.setattr(f"bayplan.executor.load.{step}", fail)
    with pytest.raises(ArithmeticError):
        load_model(make_plan(llama, stream=LAYERS), llama, model=given)
    assert_untouched(given)
    assert "bayplan-reader" not in {thread.name for thread in threading.enumerate()}
    monkeypatch.undo()
    with loaded(make_plan(llama, stream=LAYERS), llama, model=given) as model:
        assert report(model).honoured


def assert_untouched(given: Any) -> None:
    """No weights, no hook, no guard, no state; buffers as they were."""
    assert all(param.is_meta for param in given.parameters())
    assert not any(buffer.is_meta for buffer in given.buffers())
    for module in given.modules():
        hooks = (module._forward_pre_hooks, module._forward_hooks, module._state_dict_pre_hooks)
        assert not any(hooks)
        assert not {"_apply", "share_memory", "_bayplan"} & module.__dict__.keys()


def test_checkpoint_that_changes_during_a_run(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    with loaded(make_plan(folder, stream=LAYERS), folder) as model, torch.no_grad():
        expected = model(TOKENS).logits
        with (folder / "model.safetensors").open("ab") as file:
            file.write(b"x")
        with pytest.raises(StreamError) as raised:
            run_until_it_fails(model)
        assert raised.value.file == str(folder / "model.safetensors")
        assert "shard changed after it was checked" in str(raised.value)
    assert expected.shape[-1] == 128


def run_until_it_fails(model: nn.Module) -> None:
    for _ in range(3):
        model(TOKENS)


def test_exception_in_a_forward_leaves_the_next_pass_right(llama: Path) -> None:
    with loaded(make_plan(llama, stream=LAYERS), llama) as model, torch.no_grad():
        expected = model(TOKENS).logits
        with pytest.raises(IndexError):
            model(TOKENS + 1000)
        layer = model.model.layers[2].mlp
        handle = layer.register_forward_pre_hook(raise_error)
        with pytest.raises(ArithmeticError):
            model(TOKENS)
        handle.remove()
        assert torch.equal(model(TOKENS).logits, expected)


def raise_error(module: nn.Module, args: object) -> None:
    raise ArithmeticError


@pytest.mark.parametrize("layer", [0, 2])
def test_interrupt_in_a_forward_leaves_the_next_pass_right(llama: Path, layer: int) -> None:
    with loaded(make_plan(llama, stream=LAYERS), llama) as model, torch.no_grad():
        expected = model(TOKENS).logits
        handle = model.model.layers[layer].mlp.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(TOKENS)
        handle.remove()
        for _ in range(2):
            assert torch.equal(model(TOKENS).logits, expected)


def interrupt(module: nn.Module, args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("num_slots", [1, 2, 3])
def test_layers_in_any_order(llama: Path, num_slots: int) -> None:
    expected = reference(LlamaForCausalLM, llama)
    plan = make_plan(llama, stream=LAYERS, num_slots=num_slots)
    with loaded(plan, llama) as model, torch.no_grad():
        for order in ([0, 2, 4], [4, 3, 2, 1, 0], [1, 1, 1], [0, 1, 2, 3, 4], [3]):
            assert torch.equal(run_layers(model, order), run_layers(expected, order))
        assert report(model).notes[1:] != ()


def run_layers(model: Any, order: list[int]) -> torch.Tensor:
    hidden = torch.linspace(-1, 1, 3 * 64).view(1, 3, 64)
    angles = model.model.rotary_emb(hidden, torch.arange(3)[None])
    for number in order:
        hidden = model.model.layers[number](hidden, position_embeddings=angles)
    return hidden


def test_tied_weights_that_differ_in_the_checkpoint(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    )
    with pytest.raises(TiedTensorsDifferError) as raised:
        load_model(make_plan(folder), folder)
    assert str(raised.value) == (
        "model.embed_tokens.weight: tied weights differ in the checkpoint: "
        "got other values for lm_head.weight, "
        "needed equal bytes, since the model has one storage for both\n"
        "hint: set tie_word_embeddings to false in config.json, or save the checkpoint again"
    )


def test_tied_weights_that_are_stored_twice(tmp_path: Path) -> None:
    folder = save_llama(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = folder / "config.json"
    config.write_text(
        config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true')
    )
    with loaded(make_plan(folder), folder) as model:
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])


def test_wholly_resident_model_can_be_copied_and_pickled(llama: Path) -> None:
    with loaded(make_plan(llama), llama) as model, torch.no_grad():
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(made(TOKENS).logits, model(TOKENS).logits)
            with pytest.raises(UsageError):
                report(made)


def with_room(plan: Plan, activation_bytes: int, spare_bytes: int) -> Plan:
    """Return a plan of which the budget leaves so much beside it."""
    device = plan.devices[0]
    ledger = msgspec.structs.replace(device.ledger, activations=(0, activation_bytes))
    budget_bytes = ledger.budgeted_bytes + spare_bytes
    device = msgspec.structs.replace(device, ledger=ledger, budget_bytes=budget_bytes)
    return changed(plan, devices=(device,))


def test_forward_may_keep_what_the_budget_leaves(llama: Path) -> None:
    num_bytes = TOKENS.numel() * 128 * 4
    with loaded(with_room(make_plan(llama), 1024, num_bytes - 1024), llama) as model, torch.no_grad():
        assert model(TOKENS).logits.nbytes == num_bytes
    tight = with_room(make_plan(llama), 1024, num_bytes - 1025)
    with loaded(tight, llama) as model, torch.no_grad(), pytest.raises(KeptOutputsError):
        model(TOKENS)


def test_forward_that_keeps_more_than_the_budget_leaves(llama: Path) -> None:
    with loaded(with_room(make_plan(llama), 4096, 0), llama) as model, torch.no_grad():
        with pytest.raises(KeptOutputsError) as raised:
            model(TOKENS)
        assert str(raised.value) == (
            "the outputs of this forward take more memory than the budget leaves for activations: "
            "got 6.00 KiB of logits, needed at most 4.00 KiB\n"
            "hint: pass logits_to_keep=1"
        )
        assert model(TOKENS, logits_to_keep=1).logits.shape[1] == 1
        assert model(TOKENS[:, :3]).logits.shape[1] == 3
        model.generate(TOKENS, attention_mask=MASK, max_new_tokens=2, do_sample=False)


def test_edited_plan_in_memory_is_refused_before_anything_is_read(llama: Path, tmp_path: Path) -> None:
    plan = changed(make_plan(llama), applyable=False)
    with pytest.raises(PlanRefused, match="unsupported"):
        load_model(plan, tmp_path / "no such folder")
