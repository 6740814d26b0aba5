"""estimate on real classes: the documented tables, checkpoints byte for byte, and what fits."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
import torch
import transformers
from command_line import Cli, in_own_process
from hub_server import COMMIT, hub_server
from safetensors.torch import load_file, save_file
from tiny_checkpoints import tiny_llama
from tiny_models import ARCHITECTURES
from transformers import WhisperConfig, WhisperForConditionalGeneration

import bayplan
from bayplan.planner.hardware.declare import declare_inventory
from bayplan.planner.present.estimate_tables import peer_size
from bayplan.schemas.codec import encode_inventory
from bayplan.schemas.errors import Infeasible
from bayplan.schemas.plan import GAP_SCRATCH_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from bayplan.schemas.estimate import Estimate
    from bayplan.schemas.hardware import Inventory

BERT_BASE_CASED: dict[str, object] = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "vocab_size": 28996,
}
"""What differs from the defaults of the class, which are those of the base model."""
IDEFICS_80B: dict[str, object] = {
    "architectures": ["IdeficsForVisionText2Text"],
    "model_type": "idefics",
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "vocab_size": 32000,
    "additional_vocab_size": 2,
    "cross_layer_interval": 4,
    "qk_layer_norms": True,
    "use_resampler": True,
    "torch_dtype": "bfloat16",
    "perceiver_config": {"qk_layer_norms_perceiver": True},
    "vision_config": {
        "embed_dim": 1280,
        "intermediate_size": 5120,
        "num_attention_heads": 16,
        "num_hidden_layers": 32,
    },
}
DTYPES = ("float32", "float16", "int8", "int4")


def config_file(folder: Path, config: dict[str, object]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def table(found: Estimate) -> dict[str, tuple[str, str, str]]:
    """The columns that accelerate prints."""
    return {
        name: (
            peer_size(row.largest_layer_bytes),
            peer_size(row.total_bytes),
            "N/A" if row.train_adam_bytes is None else peer_size(row.train_adam_bytes),
        )
        for name, row in found.formats.items()
    }


def test_bert_base_cased_as_documented(tmp_path: Path) -> None:
    """The documented largest layer, 84.95 MB, was the word embeddings; today the class keeps all together."""
    path = config_file(tmp_path, BERT_BASE_CASED)
    found = bayplan.estimate(path, class_name="BertModel", dtypes=DTYPES)
    assert found.class_name == "BertModel"
    assert found.formats["fp32"].total_bytes == 433249280
    assert (found.formats["fp32"].largest_layer, found.formats["fp32"].largest_layer_bytes) == (
        "embeddings",
        90669056,
    )
    assert table(found) == {
        "fp32": ("86.47 MB", "413.18 MB", "1.61 GB"),
        "fp16": ("43.24 MB", "206.59 MB", "826.36 MB"),
        "int8": ("21.62 MB", "103.29 MB", "N/A"),
        "int4": ("10.81 MB", "51.65 MB", "N/A"),
    }


def test_bert_base_cased_by_its_own_class(tmp_path: Path) -> None:
    found = bayplan.estimate(config_file(tmp_path, BERT_BASE_CASED), dtypes=("fp32",))
    assert found.class_name == "BertForMaskedLM"
    assert table(found)["fp32"][1] == "413.3 MB"
    assert found.tied == (
        ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
        ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    )


def test_idefics_80b_as_documented(tmp_path: Path) -> None:
    found = bayplan.estimate(config_file(tmp_path, IDEFICS_80B), dtypes=("fp32",))
    # Documented are 2 MiB more: the class of that time kept tables of sines and cosines in every layer.
    assert found.formats["fp32"].largest_layer_bytes == 3238068736
    assert found.formats["fp32"].total_bytes == 319871427752
    assert table(found)["fp32"][0] == "3.02 GB"


@pytest.mark.interop
def test_resnet50_as_documented() -> None:
    pytest.importorskip("timm")
    found = bayplan.estimate("resnet50.a1_in1k", library="timm", dtypes=DTYPES)
    assert found.formats["fp32"].total_bytes == 102441032
    assert found.formats["fp32"].largest_layer == "layer4.0.conv2"
    assert table(found)["fp32"] == ("9.0 MB", "97.7 MB", "390.78 MB")


@pytest.fixture(scope="module")
def bf16_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("estimate") / "llama", tied=True, dtype=torch.bfloat16)


def stored_bytes(folder: Path) -> int:
    return sum(tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values())


def test_a_checkpoint_to_the_byte(bf16_llama: Path) -> None:
    found = bayplan.estimate(bf16_llama, dtypes=("bf16", "fp32"))
    assert found.checkpoint is not None
    assert stored_bytes(bf16_llama) == 2 * found.params
    buffer_bytes = found.checkpoint.total_bytes - stored_bytes(bf16_llama)
    assert 0 < buffer_bytes <= 64
    assert found.checkpoint.total_bytes == found.formats["bf16"].total_bytes
    # Of a checkpoint in bf16 too, fp32 is four bytes a parameter.
    assert found.formats["fp32"].total_bytes == 4 * found.params + buffer_bytes


def test_a_hub_model_is_sized_by_its_headers(bf16_llama: Path, tmp_path: Path) -> None:
    with hub_server() as hub:
        hub.repos["org/tiny"] = bf16_llama
        done = in_own_process(
            "estimate", "org/tiny", "--json", HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path / "home")
        )
        assert (done.code, done.err) == (0, "")
        tree = json.loads(done.out)
        assert (tree["model"], tree["revision"]) == ("org/tiny", COMMIT)
        assert (
            tree["checkpoint"]
            == json.loads(in_own_process("estimate", bf16_llama, "--json").out)["checkpoint"]
        )


REPEATED = """
import sys
from bayplan.commands.app import run_command_line
code = run_command_line(["estimate", {folder!r}, "--json", "--lora", "4"])
print(*({{"torch", "transformers"}} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def test_the_second_time_needs_no_torch(cli: Cli, bf16_llama: Path) -> None:
    first = in_own_process("estimate", bf16_llama, "--json", "--lora", "4")
    assert first.code == 0, first.err
    code = REPEATED.format(folder=str(bf16_llama))
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (second.returncode, second.stderr, second.stdout) == (0, "\n", first.out)


def test_what_fits_is_what_can_be_planned(tmp_path: Path) -> None:
    """The last context that fits can be planned without streaming, and the next one of the ladder cannot."""
    folder = tiny_llama(tmp_path / "llama")
    longest = bayplan.estimate(folder, context=128, dtypes=("fp32",)).inference["fp32"]
    need = longest.weights_bytes + longest.kv_bytes + longest.activation_bytes[1]
    need += GAP_SCRATCH_BYTES  # Of the reader, which a plan reserves too.
    machine = declare_inventory(cpu="epyc-9354", host_memory="64GiB", disk="3GB/s")
    (cpu,) = machine.devices
    contexts, found_contexts = (16, 32, 64, 128), set()
    for spare_bytes in (-100_000, -20_000, 64 * 1024):
        capacity = cpu.reserve_bytes + need + spare_bytes
        devices = (msgspec.structs.replace(cpu, capacity_bytes=capacity),)
        small = msgspec.structs.replace(machine, devices=devices)
        found = bayplan.estimate(folder, context=16, dtypes=("fp32",), fits=small).fits
        assert found is not None
        fit = found.formats["fp32"]
        assert fit is not None
        assert fit.max_context is not None
        feasible = [context for context in contexts if can_be_planned(folder, small, context)]
        assert fit.max_context == max(feasible)
        found_contexts.add(fit.max_context)
    assert len(found_contexts) > 1


def can_be_planned(folder: Path, machine: Inventory, context: int) -> bool:
    try:
        bayplan.plan_model(folder, inventory=machine, context=context, no_spill=True)
    except Infeasible:
        return False
    return True


def test_a_factory(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sized_factory.py").write_text(
        "from torch.nn import BatchNorm1d, Linear, Sequential\n\n\n"
        "def make():\n    return Sequential(Linear(40, 30), BatchNorm1d(30))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = cli("estimate", "sized_factory:make", "--json")
    assert done.code == 0, done.err
    tree = json.loads(done.out)
    params = 40 * 30 + 30 + 30 + 30
    assert (tree["model"], tree["class"], tree["params"]) == ("sized_factory:make", "Sequential", params)
    # Mean and variance in fp32, and a counter of 64 bits, as wide in every format.
    assert tree["formats"]["fp32"]["total_bytes"] == 4 * (params + 60) + 8
    assert tree["formats"]["int8"]["total_bytes"] == params + 60 + 2
    assert tree["formats"]["fp32"]["largest_layer"] == "0"
    assert (tree["kv_bytes"], tree["activation_bytes"]) == (None, None)
    assert "the order of blocks is the module tree's" in done.err


def test_a_factory_that_can_be_traced_has_one_data_type(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llama_factory.py").write_text(
        "import torch\nfrom transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "def make():\n"
        "    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,\n"
        "        num_attention_heads=4, vocab_size=100)\n"
        "    return LlamaForCausalLM(config).to(torch.bfloat16)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    inventory = tmp_path / "server.json"
    inventory.write_bytes(encode_inventory(declare_inventory(("h100-80gb",), host_memory="64GiB")))
    words = ("--json", "--context", "64", "--fits", inventory, "--dtypes", "fp32", "nf4")
    done = cli("estimate", "llama_factory:make", *words)
    assert done.code == 0, done.err
    tree = json.loads(done.out)
    assert (list(tree["formats"]), list(tree["inference"])) == (["fp32", "nf4"], ["nf4"])
    assert tree["fits"]["formats"]["fp32"] is None
    assert tree["fits"]["formats"]["nf4"]["devices"] == ["node0/gpu0"]
    assert "warning: inference in fp32 is not known: a factory chooses its own data type" in done.err


def test_a_factory_s_transformers_model_has_a_maximum(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "short_factory.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n\n"
        "def make():\n"
        "    config = LlamaConfig(hidden_size=64, intermediate_size=128, num_hidden_layers=2,\n"
        "        num_attention_heads=4, vocab_size=100, max_position_embeddings=48)\n"
        "    return LlamaForCausalLM(config)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for words, warning in (
        ((), ""),
        (("--context", "99"), "warning: --context 99 is more than the model's maximum: planned for 48\n"),
    ):
        done = cli("estimate", "short_factory:make", "--json", *words)
        assert (done.code, done.err) == (0, warning)
        assert json.loads(done.out)["context"] == 48


def tiny_config(name: str, folder: Path) -> Path:
    class_name, values = ARCHITECTURES[name]
    config_class = getattr(transformers, class_name).config_class
    config_class(**values, architectures=[class_name]).save_pretrained(folder)
    return folder


def test_whisper_s_fixed_positions_are_not_trained(tmp_path: Path) -> None:
    folder = tiny_config("whisper", tmp_path)
    model = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
    trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
    found = bayplan.estimate(folder, dtypes=("fp32",))
    assert found.params == model.num_parameters() > trained
    assert {recipe.trainable_params for recipe in found.training} == {trained}


@pytest.mark.parametrize(
    ("name", "has_positions"), [("vit", False), ("llama", True), ("whisper", True), ("t5", True)]
)
def test_models_of_images_alone_have_no_positions(name: str, has_positions: bool, tmp_path: Path) -> None:
    found = bayplan.estimate(tiny_config(name, tmp_path), dtypes=("fp32",))
    assert found.has_positions == has_positions


def test_a_checkpoint_that_nothing_is_known_of(cli: Cli, bf16_llama: Path, tmp_path: Path) -> None:
    """Its method and its names are unknown: the formats are told all the same."""
    folder = tmp_path / "quantized"
    folder.mkdir()
    config = json.loads((bf16_llama / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "made-up"}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"model.layers.0.mlp.up_proj.tangled": torch.zeros(3, 5)}, folder / "model.safetensors")
    done = cli("estimate", folder, "--json", "--dtypes", "bf16", "nf4")
    assert done.code == 0, done.err
    tree = json.loads(done.out)
    plain = json.loads(cli("estimate", bf16_llama, "--json", "--dtypes", "bf16", "nf4").out)
    assert tree["formats"] == plain["formats"]
    assert (tree["checkpoint"], list(tree["inference"])) == (None, ["bf16", "nf4"])
    assert "warning: what the checkpoint itself takes is not known; all else is counted" in done.err
    refused = cli("plan", folder, "-o", tmp_path / "plan.json")
    assert refused.code == 1
    assert 'quantized by a method that this version does not know: got "made-up"' in refused.err
    assert not (tmp_path / "plan.json").exists()


def test_no_such_model(cli: Cli) -> None:
    done = cli("estimate", "./nothing-here")
    assert (done.code, done.out) == (1, "")
    assert done.err == cli("plan", "./nothing-here").err


def test_an_inventory_from_a_file(cli: Cli, bf16_llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "server.json"
    path.write_bytes(encode_inventory(declare_inventory(("h100-80gb*2",), host_memory="64GiB")))
    done = cli("estimate", bf16_llama, "--fits", path, "--json", "--dtypes", "int4", "nf4")
    assert done.code == 0, done.err
    fits = json.loads(done.out)["fits"]
    assert [device["kind"] for device in fits["devices"]] == ["h100-80gb", "h100-80gb"]
    assert fits["formats"]["int4"] is None
    assert fits["formats"]["nf4"] == {
        "devices": ["node0/gpu0", "node0/gpu1"],
        "accelerators_context": 128,
        "max_context": 128,
    }
