from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import huggingface_hub.constants
import pytest
import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    modeling_utils,
)

from bayplan.schemas.errors import UsageError
from bayplan.skeleton.build import build_factory, build_model
from bayplan.skeleton.config import choose_class, choose_dtype, load_config
from bayplan.skeleton.config_file import ModelError
from bayplan.skeleton.creation import NoValueError
from bayplan.skeleton.tree import tensor_records, tie_groups, tree_digest

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Checkpoint

LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# The sizes of DeepSeek-V3: 671 billion parameters.
DEEPSEEK_V3 = """
import resource, torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from bayplan.skeleton.build import build_model
config = DeepseekV3Config(vocab_size=129280, hidden_size=7168, intermediate_size=18432,
    moe_intermediate_size=2048, num_hidden_layers=61, num_attention_heads=128,
    n_routed_experts=256, n_group=8, topk_group=4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = build_model(config, DeepseekV3ForCausalLM, torch.bfloat16)
print(sum(p.numel() for p in model.parameters()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_equals_from_pretrained(checkpoint: Checkpoint) -> None:
    reference = checkpoint.reference
    config = load_config(checkpoint.folder)
    model = build_model(config, choose_class(config), choose_dtype(config), folder=checkpoint.folder)
    assert type(model) is type(reference)
    assert tensor_records(model) == tensor_records(reference)
    assert tie_groups(model) == tie_groups(reference)
    assert all(param.is_meta for param in model.parameters())
    assert model.config.to_dict() == reference.config.to_dict()
    assert model.config._attn_implementation == reference.config._attn_implementation
    assert model.config._experts_implementation == reference.config._experts_implementation
    assert getattr(model, "generation_config", None) == getattr(reference, "generation_config", None)
    assert [m.training for m in model.modules()] == [m.training for m in reference.modules()]
    assert dict(model.all_tied_weights_keys) == dict(reference.all_tied_weights_keys)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtypes_equal_those_of_from_pretrained(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    reference = checkpoint.model_class.from_pretrained(checkpoint.folder, dtype=dtype)
    model = build_model(load_config(checkpoint.folder), checkpoint.model_class, dtype)
    assert tensor_records(model) == tensor_records(reference)
    assert model.dtype is reference.dtype


def test_generation_config_of_the_folder(tmp_path: Path) -> None:
    config = LlamaConfig(**LLAMA)
    config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6], "top_k": 3}))
    model = build_model(config, LlamaForCausalLM, torch.float32, folder=tmp_path)
    assert model.generation_config is not None
    assert (model.generation_config.eos_token_id, model.generation_config.top_k) == ([5, 6], 3)


def test_config_of_another_name_has_no_generation_config_beside_it(tmp_path: Path) -> None:
    config = LlamaConfig(**LLAMA, eos_token_id=7)
    (tmp_path / "llama.json").write_text(config.to_json_string())
    model = build_model(config, LlamaForCausalLM, torch.float32, folder=tmp_path)
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == 7


def test_bad_generation_config(tmp_path: Path) -> None:
    config = LlamaConfig(**LLAMA)
    config.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"cache_implementation": "none such"}')
    with pytest.raises(ModelError) as caught:
        build_model(config, LlamaForCausalLM, torch.float32, folder=tmp_path)
    first, *_ = str(caught.value).splitlines()
    assert first.startswith(f"{tmp_path}: the generation config cannot be used: got ")


def test_config_is_not_changed() -> None:
    config = LlamaConfig(**LLAMA)
    before = config.to_dict()
    build_model(config, LlamaForCausalLM, torch.bfloat16)
    assert config.to_dict() == before


def test_fused_layers() -> None:
    with pytest.raises(ModelError) as caught:
        build_model(LlamaConfig(**LLAMA, fusion_config={"mlp": True}), LlamaForCausalLM, torch.float32)
    assert str(caught.value) == (
        "the config asks for fused layers, which this version does not build: got fusion_config"
        " {'mlp': True}\nhint: remove fusion_config from config.json"
    )


@pytest.mark.filterwarnings("ignore:The .paged:FutureWarning")
@pytest.mark.parametrize("is_part", [False, True])
@pytest.mark.parametrize("kernel", ["kernels-community/flash-attn2", "org/code@v1:attend", "paged|org/code"])
def test_attention_code_of_the_hub_is_not_run_unasked(
    kernel: str, is_part: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda *args, **_: asked.append(args))
    config: PretrainedConfig = LlamaConfig(**LLAMA, attn_implementation=kernel)
    model_class: type[PreTrainedModel] = LlamaForCausalLM
    if is_part:
        config = LlavaConfig(text_config=LlamaConfig(**LLAMA), attn_implementation={"text_config": kernel})
        model_class = LlavaForConditionalGeneration
    with pytest.raises(ModelError) as caught:
        build_model(config, model_class, torch.float32)
    assert str(caught.value) == (
        f'the config asks for attention code that is on the Hub: got "{kernel}", needed permission to run'
        " that code\n"
        "hint: remove attn_implementation from config.json; --trust-remote-code runs the code"
    )
    assert asked == []
    build_model(config, model_class, torch.float32, trust_remote_code=True)
    assert asked != []  # what was refused is what would have run it


@pytest.mark.parametrize("is_trusted", [False, True])
def test_a_constructor_cannot_ask_the_hub(is_trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    offline: list[bool] = []

    class Curious(LlamaForCausalLM):
        def __init__(self, config: PretrainedConfig) -> None:
            offline.append(huggingface_hub.constants.HF_HUB_OFFLINE)
            super().__init__(config)

    build_model(LlamaConfig(**LLAMA), Curious, torch.float32, trust_remote_code=is_trusted)
    assert offline == [not is_trusted]


def test_failing_constructor() -> None:
    with pytest.raises(ModelError) as caught:
        build_model(LlamaConfig(**{**LLAMA, "hidden_act": "no such"}), LlamaForCausalLM, torch.float32)
    assert str(caught.value) == "LlamaForCausalLM cannot be built from this config: got KeyError: 'no such'"


def test_dtype_that_nothing_is_built_in() -> None:
    with pytest.raises(ModelError) as caught:
        build_model(LlamaConfig(**LLAMA), LlamaForCausalLM, torch.int8)
    assert str(caught.value) == (
        "LlamaForCausalLM cannot be built from this config: got ValueError: LlamaForCausalLM cannot be"
        " instantiated under `dtype=torch.int8` as it's not a floating-point dtype"
    )
    assert torch.get_default_dtype() is torch.float32


def test_model_that_no_plan_can_count() -> None:
    config = GPT2Config(vocab_size=10**14, n_embd=64, n_layer=1, n_head=1)
    with pytest.raises(ModelError) as caught:
        build_model(config, GPT2LMHeadModel, torch.float32)
    assert str(caught.value) == (
        "GPT2LMHeadModel of this config is larger than a plan can count: "
        "got 25600000000462592 bytes, needed at most 9007199254740991"
    )


def test_huge_model_takes_no_memory() -> None:
    done = subprocess.run([sys.executable, "-c", DEEPSEEK_V3], capture_output=True, text=True, check=True)
    num_params, kibibytes = map(int, done.stdout.split())
    assert num_params == 671_026_404_352
    assert kibibytes < 200 * 1024


FACTORIES = """
import io
import warnings
import numpy
import safetensors.torch
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.tied = nn.Linear(3, 4)
        self.tied.weight = self.linear.weight
        self.register_buffer("table", torch.arange(3.0), persistent=False)

class Namespace:
    net = Net

def fails():
    raise RuntimeError("no luck\\nsecond line")

class OwnError(Exception):
    pass

def fails_its_own_way():
    raise OwnError("mine")

def leaves():
    raise SystemExit(3)

class Silent(Exception):
    def __str__(self):
        raise ValueError

def fails_without_words():
    raise Silent

class Hard(BaseException):
    pass

def fails_hard():
    raise Hard("so")

def holds_itself():
    net = Net()
    net.add_module("again", net)
    return net

class Closed(Net):
    def named_parameters(self, *arguments, **keywords):
        raise LookupError("closed")

def has_a_sparse_table():
    net = Net()
    net.register_buffer("sparse", torch.eye(4).to_sparse())
    return net

def takes_arguments(size, *rest, depth=2):
    return Net()

def _saved():
    with io.BytesIO() as file:
        torch.save({"linear.weight": torch.zeros(4, 3), "linear.bias": torch.zeros(4)}, file)
        return io.BytesIO(file.getvalue())

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)

def loads():
    net = Plain()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.load_state_dict(torch.load(_saved()))
    return net

def assigns():
    net = Plain()
    net.load_state_dict(torch.load(_saved()), assign=True)
    return net

def loads_safetensors():
    net = Plain()
    state = safetensors.torch.save({"linear.weight": torch.zeros(4, 3), "linear.bias": torch.zeros(4)})
    net.load_state_dict(safetensors.torch.load(state), assign=True)
    return net

def puts_past_registration():
    net = Plain()
    for name, tensor in torch.load(_saved()).items():
        net.linear._parameters[name.partition(".")[2]] = nn.Parameter(tensor)
    return net

def makes_a_table():
    net = Net()
    net.table_of_numpy = nn.Parameter(torch.from_numpy(numpy.zeros(3, dtype="float32")))
    return net

def returns_a_list():
    return []

def lazy():
    return nn.LazyLinear(3)

def from_weights():
    net = Net()
    net.register_buffer("norm", torch.zeros(4).add_(net.linear.bias))
    return net

_built = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))

def built_before():
    return _built

number = 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factories_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("attribute", ["Net", "Namespace.net"])
def test_factory(factories: str, attribute: str) -> None:
    module = build_factory(f"{factories}:{attribute}")
    assert all(param.is_meta for param in module.parameters())
    assert tie_groups(module) == (("linear.weight", "tied.weight"),)
    assert dict(module.named_buffers())["table"].tolist() == [0.0, 1.0, 2.0]
    assert not module.training
    assert tree_digest(module) == tree_digest(build_factory(f"{factories}:Net"))


@pytest.mark.parametrize("spec", ["module", "a.b.c", "a b:c", ":c", "a:", "a:b:c", "../a:b"])
def test_factory_spec_of_another_form(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        build_factory(spec)
    assert str(caught.value) == f'not a factory: got "{spec}", needed package.module:factory'


def test_factory_module_cannot_be_imported() -> None:
    with pytest.raises(ModelError) as caught:
        build_factory("no_such_module:make")
    assert str(caught.value) == (
        "no_such_module:make: cannot import no_such_module: got ModuleNotFoundError: No module named"
        " 'no_such_module'\nhint: is its folder on PYTHONPATH?"
    )


@pytest.mark.parametrize("attribute", ["nothing", "number", "Namespace.nothing"])
def test_factory_is_no_callable(factories: str, attribute: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_factory(f"{factories}:{attribute}")
    assert str(caught.value) == (
        f"{factories}:{attribute}: {factories} has no callable {attribute}: needed a function or class"
    )


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("fails", "the factory fails: got RuntimeError: no luck second line"),
        ("fails_its_own_way", "the factory fails: got OwnError: mine"),
        ("leaves", "the factory fails: got SystemExit: 3"),
        ("fails_without_words", "the factory fails: got Silent"),
        ("fails_hard", "the factory fails: got Hard: so"),
        ("Closed", "the factory's module cannot be looked through: got LookupError: closed"),
        (
            "has_a_sparse_table",
            "the factory's module holds tensors that are not dense: got sparse, needed tensors that a"
            " checkpoint can hold",
        ),
        (
            "takes_arguments",
            "the factory takes arguments: got size, needed a function or class that is called without any\n"
            "hint: write a function around it that passes them",
        ),
        *(
            (
                name,
                "the factory loads weights: got 64 B of 64 B, needed a module as its class makes it\n"
                "hint: build it from its config alone; weights come from --checkpoint",
            )
            for name in ("loads", "assigns", "loads_safetensors", "puts_past_registration")
        ),
        ("returns_a_list", "the factory returns no module: got list, needed an nn.Module"),
        (
            "lazy",
            "the factory's module has parameters without a shape: got weight, bias, needed a module whose"
            " shapes are known\nhint: replace Lazy modules by ones with sizes",
        ),
        (
            "built_before",
            "the factory's module holds real weights: got 0.weight, 0.bias, 1.weight and 3 more, needed"
            " parameters made in the call, in its own thread\n"
            "hint: let the factory build a new module; weights come from --checkpoint",
        ),
    ],
)
def test_factory_fault(factories: str, factory: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_factory(f"{factories}:{factory}")
    assert str(caught.value) == f"{factories}:{factory}: {message}"


def test_factory_whose_module_holds_itself(factories: str) -> None:
    with pytest.raises(ModelError) as caught:
        build_factory(f"{factories}:holds_itself")
    # Where the depth was reached, Python says in words of its own.
    assert str(caught.value).startswith(
        f"{factories}:holds_itself: the factory's module cannot be looked through: got RecursionError: "
    )


def test_factory_may_make_a_few_values_elsewhere(factories: str) -> None:
    module = build_factory(f"{factories}:makes_a_table")
    assert all(param.is_meta for param in module.parameters())


def test_a_module_that_fails_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text("class Odd(Exception): pass\nraise Odd('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError) as caught:
        build_factory("broken_module:make")
    assert str(caught.value) == (
        "broken_module:make: cannot import broken_module: got Odd: at import\n"
        "hint: is its folder on PYTHONPATH?"
    )


def test_factory_module_built_before_keeps_its_weights(factories: str) -> None:
    with pytest.raises(ModelError):
        build_factory(f"{factories}:built_before")
    assert not any(param.is_meta for param in importlib.import_module(factories).built_before().parameters())


def test_class_that_computes_a_buffer_from_weights() -> None:
    class Peeking(PreTrainedModel):
        config_class = GPT2Config

        def __init__(self, config: PretrainedConfig) -> None:
            super().__init__(config)
            self.linear = nn.Linear(2, 2)
            self.register_buffer("sum", torch.zeros(2).add_(self.linear.bias))
            self.post_init()

    with pytest.raises(NoValueError) as caught:
        build_model(GPT2Config(), Peeking, torch.float32)
    assert str(caught.value).startswith("add_ puts the values of a weight into a buffer, ")


def test_factory_that_computes_a_buffer_from_weights(factories: str) -> None:
    with pytest.raises(NoValueError) as caught:
        build_factory(f"{factories}:from_weights")
    assert str(caught.value).startswith("add_ puts the values of a weight into a buffer, ")
