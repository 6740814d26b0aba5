from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from executor_models import LAYERS, TOKENS, reference, save, save_llama
from plan_maker import changed, make_plan
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertModel,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from word_tokenizer import add_tokenizer

from bayplan.executor import run as run_module
from bayplan.executor.errors import ContextExceededError
from bayplan.executor.measure import ForwardMeter
from bayplan.executor.prompts import Prompts
from bayplan.executor.run import digest_tensors, forward, generate, run_plan
from bayplan.executor.workload_guard import Call
from bayplan.schemas.errors import BayplanError, PlanRefused, RefusalKind, UsageError

PROMPTS = ("w4 w14 w15 w22", "w55 w35 w59", "w33 w32 w38 w46 w26")


PROMPT_IDS = ([4, 14, 15, 22], [55, 35, 59], [33, 32, 38, 46, 26])


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a tokenizer."""
    folder = save_llama(tmp_path_factory.mktemp("speaker"), vocab_size=64)
    return add_tokenizer(folder)


def expected_ids(folder: Path, prompt: str, num_new: int, **options: Any) -> list[int]:
    model = reference(LlamaForCausalLM, folder)
    ids = torch.tensor([[int(word[1:]) for word in prompt.split()]])
    made = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_new, do_sample=False, **options
    )
    return list(made[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("stream", [(), LAYERS])
def test_prompts_one_at_a_time_give_the_tokens_of_transformers(
    speaker: Path, stream: tuple[str, ...]
) -> None:
    plan = make_plan(speaker, stream=stream, batch=1)
    result = run_plan(plan, speaker, prompts=PROMPTS, max_new_tokens=6)
    expected = [expected_ids(speaker, prompt, 6) for prompt in PROMPTS]
    assert [list(ids) for ids in result.report.token_ids] == expected
    assert result.texts == tuple(" ".join(f"w{token}" for token in ids if token > 3) for ids in expected)
    assert result.report.honoured
    assert result.report.measured.decode_ns is not None
    assert result.outputs_digest is None


def test_prompts_in_batches_are_padded_on_the_left(speaker: Path) -> None:
    plan = make_plan(speaker, stream=LAYERS, batch=2)
    result = run_plan(plan, speaker, prompts=PROMPTS, max_new_tokens=6)
    assert [list(ids) for ids in result.report.token_ids] == [
        expected_ids(speaker, prompt, 6) for prompt in PROMPTS
    ]


def test_tokens_after_the_end_are_left_out(speaker: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speaker, tmp_path / "copy"))
    first, second, third = expected_ids(speaker, PROMPTS[0], 3)
    assert len({first, second, third}) == 3
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [2, second]}))
    plan = make_plan(folder, batch=2)
    result = run_plan(plan, folder, prompts=PROMPTS[:2], max_new_tokens=6)
    assert result.report.token_ids[0] == (first, second)
    assert len(result.report.token_ids[1]) == 6


def test_long_prompt_goes_in_chunks_as_planned(speaker: Path) -> None:
    plan = make_plan(speaker, batch=1)
    plan = changed(plan, workload=msgspec.structs.replace(plan.workload, prefill_chunk=2))
    result = run_plan(plan, speaker, prompts=PROMPTS[:1], max_new_tokens=5)
    assert list(result.report.token_ids[0]) == expected_ids(speaker, PROMPTS[0], 5, prefill_chunk_size=2)


def test_tokenizer_without_padding_uses_its_end(speaker: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speaker, tmp_path / "copy"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    result = run_plan(make_plan(folder, batch=3), folder, prompts=PROMPTS, max_new_tokens=4)
    assert [list(ids) for ids in result.report.token_ids] == [
        expected_ids(speaker, prompt, 4) for prompt in PROMPTS
    ]


def test_model_with_two_stacks_generates(tmp_path: Path) -> None:
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0,
        decoder_start_token_id=0, eos_token_id=2,
    )  # fmt: skip
    save(T5ForConditionalGeneration, config, tmp_path)
    add_tokenizer(tmp_path)
    model = reference(T5ForConditionalGeneration, tmp_path)
    ids = torch.tensor([[4, 14, 15]])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)[
        0, 1:
    ].tolist()
    result = run_plan(make_plan(tmp_path, batch=1), tmp_path, prompts=["w4 w14 w15"], max_new_tokens=5)
    assert list(result.report.token_ids[0]) == expected
    with pytest.raises(ContextExceededError, match="more encoder positions than planned: got 3"):
        run_plan(make_plan(tmp_path, context=2), tmp_path, prompts=["w4 w14 w15"], max_new_tokens=1)


def test_prompts_of_a_model_that_does_not_generate(tmp_path: Path) -> None:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    save(BertModel, config, tmp_path)
    add_tokenizer(tmp_path)
    model = reference(BertModel, tmp_path)
    ids = torch.tensor([[4, 14, 15], [9, 26, 0], [5, 0, 0]])
    result = run_plan(make_plan(tmp_path, batch=2), tmp_path, prompts=["w4 w14 w15", "w9 w26", "w5"])
    with torch.no_grad():
        expected = torch.cat(
            [model(part, attention_mask=(part != 0).long()).last_hidden_state for part in (ids[:2], ids[2:])]
        )
    assert torch.equal(result.outputs["last_hidden_state"], expected)
    assert result.outputs_digest == digest_tensors(result.outputs)
    assert result.report.token_ids == ()
    assert result.texts == ()


def test_inputs_from_a_file(llama: Path, tmp_path: Path) -> None:
    save_file({"input_ids": TOKENS}, tmp_path / "inputs.safetensors")
    plan = make_plan(llama, stream=LAYERS)
    result = run_plan(plan, llama, inputs=tmp_path / "inputs.safetensors")
    with torch.no_grad():
        expected = reference(LlamaForCausalLM, llama)(TOKENS, logits_to_keep=1).logits
    assert torch.equal(result.outputs["logits"], expected)
    assert result.report.measured.first_output_ns is not None


def test_digest_of_tensors_tells_names_shapes_and_bits_apart() -> None:
    base = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": torch.zeros(2, 3)}
    assert digest_tensors(base) == digest_tensors(same)
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"c": torch.zeros(2, 3), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.float64)},
        {"a": -torch.zeros(2, 3), "b": torch.ones(1)},
    ]
    assert len({digest_tensors(tensors) for tensors in [base, *others]}) == 5
    assert digest_tensors({"s": torch.tensor(1.0)}).startswith("sha256:")


@pytest.mark.parametrize(
    ("options", "got"), [({}, "neither"), ({"prompts": ["w3"], "inputs": "x.safetensors"}, "both")]
)
def test_prompts_or_inputs(llama: Path, options: dict[str, Any], got: str) -> None:
    with pytest.raises(UsageError) as raised:
        run_plan(make_plan(llama), llama, **options)
    assert str(raised.value) == f"give prompts or inputs: got {got}, needed one of them"


def test_nothing_to_generate(llama: Path) -> None:
    with pytest.raises(UsageError) as raised:
        run_plan(make_plan(llama), llama, prompts=["w3"], max_new_tokens=0)
    assert str(raised.value) == "nothing to generate: got 0 new tokens, needed at least 1"


def test_folder_without_a_tokenizer(llama: Path) -> None:
    with pytest.raises(BayplanError) as raised:
        run_plan(make_plan(llama), llama, prompts=["w3"])
    assert raised.value.what == "no tokenizer for the prompts"
    assert raised.value.where == str(llama)
    assert raised.value.needed == "the tokenizer's files beside the weights"
    assert raised.value.hint == "copy them there, or pass token ids with --inputs"


def test_inputs_that_are_no_safetensors_file(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "inputs.safetensors"
    for got in ("FileNotFoundError: No such file or directory", "SafetensorError: "):
        with pytest.raises(BayplanError) as raised:
            run_plan(make_plan(llama), llama, inputs=path)
        assert raised.value.what == "the inputs cannot be read"
        assert raised.value.where == str(path)
        assert raised.value.got.startswith(got)
        assert raised.value.needed == "a safetensors file of named tensors"
        path.write_bytes(b"x" * 20)


def test_prompt_beyond_the_context_is_refused_before_loading(
    speaker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "carry_out", None)
    with pytest.raises(ContextExceededError) as raised:
        run_plan(make_plan(speaker, context=8), speaker, prompts=PROMPTS, max_new_tokens=5)
    assert str(raised.value) == (
        "more positions than planned: got 10, needed at most 8\nhint: plan again with --context 10"
    )


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Bert with a tokenizer."""
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
    )
    return add_tokenizer(save(BertModel, config, tmp_path_factory.mktemp("encoder")))


def test_prompt_of_a_model_that_does_not_generate_beyond_the_context(
    encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "carry_out", None)
    with pytest.raises(ContextExceededError) as raised:
        run_plan(make_plan(encoder, context=4), encoder, prompts=PROMPTS)
    assert (raised.value.noun, raised.value.got, raised.value.planned) == ("positions", "5", 4)


def test_inputs_beyond_the_plan_are_refused_before_loading(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "carry_out", None)
    save_file({"input_ids": TOKENS}, tmp_path / "inputs.safetensors")
    with pytest.raises(ContextExceededError) as raised:
        run_plan(make_plan(llama, batch=1), llama, inputs=tmp_path / "inputs.safetensors")
    assert (raised.value.noun, raised.value.got) == ("sequences", "2")


@pytest.mark.parametrize("prompts", [[""], ["w4 w5", ""], ["", ""]])
def test_prompt_without_tokens(speaker: Path, prompts: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        run_plan(make_plan(speaker), speaker, prompts=prompts)
    assert str(raised.value) == 'a prompt has no tokens: got "", needed at least one'


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"input_ids": TOKENS + 128},
            "input_ids hold ids that the vocabulary does not have: got 220, needed 0 to 127",
        ),
        (
            {"input_ids": TOKENS.float()},
            "input_ids are no token ids: got fp32[2, 6], "
            "needed int64 or int32 of shape [sequences, positions], none of them 0",
        ),
        ({}, "the inputs hold no tensor: needed arguments of a forward"),
    ],
)
def test_inputs_that_the_model_cannot_take(
    llama: Path, tmp_path: Path, inputs: dict[str, torch.Tensor], message: str
) -> None:
    path = tmp_path / "inputs.safetensors"
    save_file(inputs, path)
    with pytest.raises(BayplanError) as raised:
        run_plan(make_plan(llama), llama, inputs=path)
    assert str(raised.value) == f"{path}: {message}"


def test_unknown_argument(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "inputs.safetensors"
    save_file({"input_idz": TOKENS}, path)
    with pytest.raises(BayplanError) as raised:
        run_plan(make_plan(llama), llama, inputs=path)
    assert str(raised.value).startswith(
        f'{path}: LlamaForCausalLM has no such arguments: got "input_idz", needed some of input_ids, '
    )


def test_inputs_that_fail_inside_the_forward(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "inputs.safetensors"
    save_file({"input_ids": TOKENS, "inputs_embeds": torch.zeros(2, 6, 64)}, path)
    with pytest.raises(BayplanError) as raised:
        run_plan(make_plan(llama), llama, inputs=path)
    assert raised.value.what == "LlamaForCausalLM.forward failed"
    assert sorted(raised.value.where.split("], ")) == ["input_ids int64[2, 6", "inputs_embeds fp32[2, 6, 64]"]
    assert raised.value.got == ("ValueError: You must specify exactly one of input_ids or inputs_embeds")


def test_failures_say_what_was_run(speaker: Path) -> None:
    model, workload = reference(LlamaForCausalLM, speaker), make_plan(speaker).workload
    for run, name in (
        (lambda group: forward(model, group, workload), "forward"),
        (lambda group: generate(model, group, workload, 2, pad_token_id=0), "generate"),
    ):
        with pytest.raises(BayplanError) as raised:
            run({"input_ids": TOKENS[:1] + 1000})
        assert str(raised.value) == (
            f"input_ids int64[1, 6]: LlamaForCausalLM.{name} failed: "
            "got IndexError: index out of range in self"
        )


def test_tokenizer_that_makes_more_than_the_model_takes(speaker: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speaker, tmp_path / "copy"))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    made = Prompts(folder, trust_remote_code=False).groups_to_generate(PROMPTS[:1], 1)
    assert "token_type_ids" in made[0]
    result = run_plan(make_plan(folder), folder, prompts=PROMPTS[:1], max_new_tokens=4)
    assert list(result.report.token_ids[0]) == expected_ids(speaker, PROMPTS[0], 4)


def test_checkpoint_given_as_a_file(speaker: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(speaker, tmp_path / "copy"))
    plan = make_plan(folder, stream=LAYERS)
    file = (folder / "model.safetensors").rename(folder / "consolidated.00.safetensors")
    assert plan.model.checkpoint is not None
    shard = msgspec.structs.replace(plan.model.checkpoint.shards[0], file=file.name)
    checkpoint = msgspec.structs.replace(plan.model.checkpoint, shards=(shard,))
    plan = changed(plan, model=msgspec.structs.replace(plan.model, checkpoint=checkpoint))
    for given in (file, str(file), folder):
        result = run_plan(plan, given, prompts=PROMPTS[:1], max_new_tokens=3)
        assert list(result.report.token_ids[0]) == expected_ids(speaker, PROMPTS[0], 3)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """Folders whose tokenizer was opened, and whether its code might run; every opening ends the run."""
    asked: list[tuple[Path, bool]] = []

    def refuse(folder: Path, *, trust_remote_code: bool) -> None:
        asked.append((folder, trust_remote_code))
        raise ArithmeticError

    monkeypatch.setattr(run_module, "Prompts", refuse)
    return asked


def test_tokenizer_is_opened_only_of_the_planned_model(
    speaker: Path, tmp_path: Path, opened: list[tuple[Path, bool]]
) -> None:
    other = add_tokenizer(save_llama(tmp_path, hidden_size=32, vocab_size=64))
    with pytest.raises(PlanRefused) as raised:
        run_plan(make_plan(speaker), other, prompts=PROMPTS, trust_remote_code=True)
    assert raised.value.kind is RefusalKind.FOREIGN
    assert opened == []


@pytest.mark.parametrize(("is_planned", "is_allowed"), [(False, False), (False, True), (True, True)])
def test_code_of_the_tokenizer_runs_only_if_plan_and_caller_say_so(
    speaker: Path, opened: list[tuple[Path, bool]], is_planned: bool, is_allowed: bool
) -> None:
    plan = make_plan(speaker)
    plan = changed(plan, model=msgspec.structs.replace(plan.model, trust_remote_code=is_planned))
    with pytest.raises(ArithmeticError):
        run_plan(plan, speaker, prompts=PROMPTS, trust_remote_code=is_allowed)
    assert opened == [(speaker, is_planned and is_allowed)]


def test_model_is_released_when_a_run_fails(speaker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ArithmeticError

    monkeypatch.setattr(run_module, "generate", fail)
    with pytest.raises(ArithmeticError):
        run_plan(make_plan(speaker, stream=LAYERS), speaker, prompts=PROMPTS)
    assert "bayplan-reader" not in {thread.name for thread in threading.enumerate()}


def test_last_chunk_of_one_position_is_part_of_the_first_output(speaker: Path) -> None:
    plan = make_plan(speaker, batch=1)
    plan = changed(plan, workload=msgspec.structs.replace(plan.workload, prefill_chunk=2))
    seen: list[int] = []

    class Meter(ForwardMeter):
        def _count(self, call: Call, taken_ns: int) -> None:
            super()._count(call, taken_ns)
            seen.append(len(self._step_ns))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayplan.executor.load.ForwardMeter", Meter)
        run_plan(plan, speaker, prompts=PROMPTS[1:2], max_new_tokens=3)
    assert seen == [0, 0, 1, 2]
