"""Models of timm and diffusers through the whole reading; the libraries are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import msgspec
import pytest
import torch
from hub_server import COMMIT, HubServer, hub_server
from safetensors.torch import save_file
from stand_in_libraries import Net, stand_in_diffusers, stand_in_timm

from bayplan.commands.app import run_command_line
from bayplan.executor.load import load_model
from bayplan.planner.api import make_plan
from bayplan.planner.bind import bind_plan
from bayplan.planner.model.hub_faults import HubError
from bayplan.planner.model.read_model import read_model
from bayplan.planner.options import PlanOptions
from bayplan.schemas.codec import read_plan
from bayplan.schemas.errors import PlanRefused, UsageError
from bayplan.schemas.features import Feature, not_yet_run
from bayplan.schemas.plan import Plan
from bayplan.skeleton.config_file import ModelError

TIMM = PlanOptions(library="timm")
TIMM_CONFIG = {"architecture": "net10", "num_classes": 10, "pretrained_cfg": {"tag": "a1"}}


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_timm(monkeypatch)
    stand_in_diffusers(monkeypatch)


@pytest.fixture
def timm_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TIMM_CONFIG))
    save_file(Net(10).state_dict(), folder / "model.safetensors")
    return folder


@pytest.fixture
def unet(tmp_path: Path) -> Path:
    folder = tmp_path / "unet"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_class_name": "TinyUNet", "in_channels": 4}))
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with hub_server() as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


def plan(name: Path | str, options: PlanOptions = PlanOptions()) -> Plan:  # noqa: B008 it is frozen
    return make_plan(str(name), msgspec.structs.replace(options, use_cache=False)).plan


def test_timm_by_folder(timm_folder: Path) -> None:
    read = read_model(str(timm_folder), PlanOptions(batch=3))
    assert (read.model.library, read.model.library_version) == ("timm", "0.0")
    assert (read.model.class_name, read.dtype) == ("Net", "fp32")
    assert read.model.checkpoint is not None
    assert read.sources["conv.weight"] == "conv.weight"
    assert (read.graph.traced, read.graph.generates, read.has_positions) == (True, False, False)
    flops = {block.id: block.prefill.flops for block in read.graph.blocks}
    # The convolution: 3 images, 4 x 4 places, 4 channels of 3 x 2 x 2 products.
    assert flops["conv"] == 2 * 3 * 4 * 4 * 4 * 12


def test_timm_by_name() -> None:
    read = read_model("net20.a1", TIMM)
    assert (read.model.source, read.model.config_digest, read.model.checkpoint) == ("net20.a1", None, None)
    assert read.graph.traced


def test_timm_by_name_in_another_data_type() -> None:
    read = read_model("net20", PlanOptions(library="timm", format="bf16"))
    assert {tensor.dtype for block in read.graph.blocks for tensor in block.tensors} == {"bf16", "int64"}


def test_timm_in_the_data_type_of_its_checkpoint(timm_folder: Path) -> None:
    save_file(Net(10).half().state_dict(), timm_folder / "model.safetensors")
    assert read_model(str(timm_folder), PlanOptions()).dtype == "fp16"


def test_timm_from_the_hub(hub: HubServer, timm_folder: Path) -> None:
    hub.repos["timm/net10.a1"] = timm_folder
    for name in ("timm/net10.a1", "hf-hub:timm/net10.a1", "hf_hub:timm/net10.a1"):
        read = read_model(name, PlanOptions())
        assert (read.model.source, read.model.revision, read.warnings) == ("timm/net10.a1", COMMIT, ())
        assert read.model.checkpoint is not None


def test_timm_that_the_hub_does_not_have(hub: HubServer) -> None:
    with pytest.raises(HubError) as caught:
        read_model("timm/net10", PlanOptions())
    assert str(caught.value) == (
        "timm/net10: neither a local folder nor a model that the Hub shows you\n"
        "hint: --library timm builds it from timm's own definition, without the Hub"
    )


def test_timm_without_the_hub(hub: HubServer) -> None:
    read = read_model("timm/net10", TIMM)
    assert (read.model.source, read.model.checkpoint) == ("net10", None)
    assert read.warnings == (
        "timm/net10: built from timm's own definition: "
        "neither a local folder nor a model that the Hub shows you",
    )


def test_a_gated_model_is_not_replaced(hub: HubServer, timm_folder: Path) -> None:
    hub.repos["timm/net10"] = timm_folder
    hub.gated["timm/net10"] = 403
    with pytest.raises(HubError, match="only to those who accepted its terms"):
        read_model("timm/net10", TIMM)


def test_diffusers(unet: Path) -> None:
    read = read_model(str(unet), PlanOptions(format="bf16"))
    assert (read.model.library, read.model.class_name) == ("diffusers", "TinyUNet")
    assert read.graph.traced
    dtypes = {tensor.fqn: tensor.dtype for block in read.graph.blocks for tensor in block.tensors}
    assert (dtypes["conv.weight"], dtypes["norm.weight"]) == ("bf16", "fp32")


def test_a_class_is_not_chosen(unet: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_model(str(unet), PlanOptions(class_name="BertModel"))
    assert str(caught.value) == (
        "--class: a model of diffusers has one class: got BertModel\nhint: leave the option out"
    )


def test_the_library_is_forced(unet: Path) -> None:
    with pytest.raises(ModelError) as caught:
        read_model(str(unet), TIMM)
    assert str(caught.value) == (f'{unet}/config.json: not a config of timm: needed a string "architecture"')


def test_a_plan_is_refused_by_this_version(timm_folder: Path) -> None:
    made = plan(timm_folder)
    assert not made.applyable
    assert not_yet_run(made) == (Feature.ANY_MODULE,)
    with pytest.raises(PlanRefused) as caught:
        load_model(made, timm_folder)
    assert str(caught.value) == (
        "plan refused (unsupported): uses what this version does not run yet: "
        "got models of other libraries than transformers"
    )


def test_a_plan_from_a_config_is_bound_to_weights(timm_folder: Path) -> None:
    """Without consent to run code: the plan names none."""
    whole = plan(timm_folder)
    file = timm_folder / "model.safetensors"
    away = file.rename(timm_folder.parent / "model.safetensors")
    unbound = plan(timm_folder)
    away.rename(file)
    bound = bind_plan(unbound, str(timm_folder))
    assert bound.model.checkpoint == whole.model.checkpoint
    assert bound.rules == whole.rules


def test_a_plan_by_name_is_bound_to_weights(timm_folder: Path) -> None:
    bound = bind_plan(plan("net10", TIMM), str(timm_folder))
    whole = plan(timm_folder)
    assert (bound.model.checkpoint, bound.model.config_digest) == (
        whole.model.checkpoint,
        whole.model.config_digest,
    )


def test_equal_names_give_equal_plans() -> None:
    assert plan("net10", TIMM).digest == plan("net10", TIMM).digest != plan("net20", TIMM).digest


@pytest.mark.interop
def test_real_resnet_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    pytest.importorskip("timm")
    read = read_model("resnet50", TIMM)
    assert read.graph.traced
    assert sum(block.num_bytes for block in read.graph.blocks) == 102441032
    # Published: 4.1 G multiply-adds.
    assert sum(block.prefill.flops for block in read.graph.blocks) / 2e9 == pytest.approx(4.1, rel=0.01)


@pytest.mark.interop
def test_real_unet_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable Diffusion 1.5's."""
    monkeypatch.undo()
    pytest.importorskip("diffusers")
    config = {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768, "sample_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = read_model(str(tmp_path), PlanOptions())
    assert (read.graph.traced, read.graph.num_params) == (True, 859520964)


def test_dtype_of_nothing_known(unet: Path) -> None:
    assert read_model(str(unet), PlanOptions()).dtype == "fp32"
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("option", ["--library", "--library_name"])
def test_the_command_takes_the_library(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "net10.a1", option, "timm", "--no-cache", "-o", str(tmp_path / "plan.json")]
    assert run_command_line(words) == 0
    assert read_plan(tmp_path / "plan.json").plan.model.source == "net10.a1"
    assert "Net" in capsys.readouterr().out
