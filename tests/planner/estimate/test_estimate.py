"""estimate: one model in every format, for every use, from as few readings as it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from placement_problems import make_device, make_inventory, make_link
from sized_models import (
    BUFFER_BYTES,
    INNER,
    LAYER_PARAMS,
    LAYERS,
    MAX_CONTEXT,
    NUM_PARAMS,
    WIDTH,
    WORDS,
    language_model,
    record,
)

import bayplan
from bayplan.planner.estimate.api import EstimateKeywords, make_estimate
from bayplan.planner.estimate.inference import activation_bytes
from bayplan.planner.estimate.options import ALL_FORMATS, EstimateOptions
from bayplan.planner.options import PlanOptions
from bayplan.planner.solve.margins import activation_bounds
from bayplan.schemas.errors import UsageError
from bayplan.schemas.estimate import Counted, Estimate, FormatEstimate, encode_estimate
from bayplan.schemas.format_bytes import Mxfp4
from bayplan.schemas.graph import TensorRole
from bayplan.schemas.problem import BlockForm
from bayplan.schemas.quantization import Group, Scheme
from bayplan.schemas.strict_json import parse

if TYPE_CHECKING:
    from sized_models import StandInReader

    from bayplan.schemas.hardware import Inventory

FP32_BYTES = 4 * NUM_PARAMS + BUFFER_BYTES
KV_BYTES = LAYERS * 2 * 2 * WIDTH * 64


def estimate(reader: StandInReader, **options: object) -> Estimate:
    return make_estimate("hand/made", EstimateOptions(**options))


def test_plain_formats(reader: StandInReader) -> None:
    found = estimate(reader)
    assert tuple(found.formats) == ALL_FORMATS
    assert found.formats["fp32"] == FormatEstimate(
        largest_layer="model.layers.0",
        largest_layer_bytes=4 * LAYER_PARAMS,
        total_bytes=FP32_BYTES,
        train_adam_bytes=4 * FP32_BYTES,
        counted=Counted.TENSORS,
    )
    for name in ("bf16", "fp16"):
        assert found.formats[name].total_bytes == 2 * NUM_PARAMS + BUFFER_BYTES
        assert found.formats[name].train_adam_bytes == 2 * FP32_BYTES
    assert found.params == NUM_PARAMS
    assert found.tied == (("head.weight", "model.embed.weight"),)


def test_int8_and_int4_are_the_fp32_figures_divided(reader: StandInReader) -> None:
    found = estimate(reader).formats
    for name, divisor in (("int8", 4), ("int4", 8)):
        assert found[name] == FormatEstimate(
            largest_layer="model.layers.0",
            largest_layer_bytes=4 * LAYER_PARAMS // divisor,
            total_bytes=FP32_BYTES // divisor,
            train_adam_bytes=None,
            counted=Counted.DIVISION,
        )


def test_quantized_formats_have_scales_and_unquantized_parts(reader: StandInReader) -> None:
    """Per layer, six linear weights; embedding, norms and buffers stay as they are."""
    found = estimate(reader).formats
    linear = LAYER_PARAMS - WIDTH
    rest = 2 * (NUM_PARAMS - LAYERS * linear) + BUFFER_BYTES
    rows = 4 * WIDTH + 2 * WIDTH + WIDTH
    assert found["int8-bnb"].total_bytes == rest + LAYERS * (linear + 4 * rows)
    codes = 6 * 16 * 4
    assert found["nf4"].total_bytes == rest + LAYERS * (linear // 2 + 4 * linear // 64 + codes)
    assert found["fp4"].total_bytes == found["nf4"].total_bytes
    assert found["mxfp4"].total_bytes == rest + LAYERS * (linear // 2 + linear // 32)
    assert {found[name].train_adam_bytes for name in ("int8-bnb", "nf4", "fp4", "mxfp4")} == {None}
    assert {found[name].largest_layer for name in ("int8-bnb", "nf4", "fp4", "mxfp4")} == {"model.embed"}


def test_inference_at_batch_and_context(reader: StandInReader) -> None:
    found = estimate(reader)
    layer_kv = 2 * 2 * WIDTH * 64
    traced = 2 * WIDTH * 64 + 4 * layer_kv
    assert (found.kv_bytes, found.activation_bytes) == (KV_BYTES, activation_bounds(traced))
    row = found.inference["nf4"]
    activations = activation_bounds(traced + 2 * WIDTH * INNER)  # the largest weight, unpacked
    assert (row.compute_dtype, row.kv_bytes, row.activation_bytes) == ("bf16", KV_BYTES, activations)
    weights = found.formats["nf4"].total_bytes
    assert row.weights_bytes == weights
    assert row.total_bytes == (
        weights + KV_BYTES + activations[0] + row.runtime_bytes[0],
        weights + KV_BYTES + activations[1] + row.runtime_bytes[1],
    )


def test_a_step_may_copy_experts(reader: StandInReader) -> None:
    """On accelerators, so that the least is without."""
    graph = language_model().graph
    blocks = tuple(msgspec.structs.replace(block, copied_bytes=1_000_000) for block in graph.blocks)
    step = max(block.decode.activation_bytes for block in blocks)
    base = graph.base_activation_bytes
    lo, hi = activation_bytes(msgspec.structs.replace(graph, blocks=blocks))
    assert lo == activation_bytes(graph)[0]
    assert hi == activation_bounds(base + step + 1_000_000)[1]
    form = BlockForm(
        format="bf16",
        num_bytes=0,
        parameter_bytes=0,
        buffer_bytes=0,
        prefill_read_bytes=0,
        decode_read_bytes=0,
        workspace_bytes=100,
        copied_bytes=500_000,
    )
    lo, hi = activation_bytes(graph, [form] * len(blocks))
    assert lo == activation_bytes(graph)[0] + 100
    assert hi == activation_bounds(base + step + 500_100)[1]


def test_one_reading_unless_another_data_type_is_asked_for(reader: StandInReader) -> None:
    assert "fp32" not in estimate(reader).inference
    assert reader.asked == [("hand/made", PlanOptions())]
    reader.asked.clear()
    found = estimate(reader, dtypes=("float32", "fp16", "int8", "nf4"))
    assert list(found.inference) == ["fp32", "fp16", "nf4"]
    assert [options.format for _, options in reader.asked] == [None, "fp32"]
    assert found.inference["fp32"].kv_bytes == 2 * KV_BYTES
    assert found.inference["fp16"].kv_bytes == KV_BYTES
    assert found.kv_bytes == KV_BYTES


def test_a_16_bit_row_of_an_fp32_model_is_read_in_bf16(reader: StandInReader) -> None:
    reader.changes["dtype"] = "fp32"
    found = estimate(reader, dtypes=("fp16", "bf16"))
    assert [options.format for _, options in reader.asked] == [None, "bf16"]
    assert [row.compute_dtype for row in found.inference.values()] == ["bf16", "fp16"]


def test_every_option_reaches_the_reader(reader: StandInReader) -> None:
    estimate(
        reader,
        batch=2,
        context=32,
        encoder_context=16,
        class_name="Other",
        library="timm",
        variant="fp16",
        trust_remote_code=True,
        checkpoint="weights",
        use_cache=False,
    )
    assert reader.asked == [
        (
            "hand/made",
            PlanOptions(
                batch=2,
                context=32,
                encoder_context=16,
                class_name="Other",
                library="timm",
                variant="fp16",
                trust_remote_code=True,
                checkpoint="weights",
                use_cache=False,
            ),
        )
    ]


def test_a_model_that_was_not_traced(reader: StandInReader) -> None:
    reader.graph_changes["traced"] = False
    found = estimate(reader, fits=machine(10**9))
    assert (found.kv_bytes, found.activation_bytes, found.inference, found.fits) == (None, None, {}, None)
    assert found.formats["fp32"].total_bytes == FP32_BYTES
    assert found.warnings == ("what fits is not known: no forward could be traced",)


def test_a_factory_is_only_read_in_its_own_data_type(reader: StandInReader) -> None:
    reader.changes["model"] = msgspec.structs.replace(language_model().model, library="torch")
    assert "fp32" not in estimate(reader).inference
    assert estimate(reader).warnings == ()
    for found in (
        estimate(reader, dtypes=("fp32", "fp16", "int4"), fits=machine(10**9)),
        estimate(reader, fits=machine(10**9)),
    ):
        assert {options.format for _, options in reader.asked} == {None}
        assert found.formats["fp32"].total_bytes == FP32_BYTES
        assert "fp32" not in found.inference
        assert found.fits is not None
        assert (found.fits.formats["fp32"], found.fits.formats["int4"]) == (None, None)
        assert found.fits.formats["fp16"] is not None
        assert found.warnings == ("inference in fp32 is not known: a factory chooses its own data type",)


def test_the_checkpoint_s_own_tensors(reader: StandInReader) -> None:
    reader.changes["stored"] = {
        "model.embed": (record("model.embed.weight", WORDS, WIDTH, dtype="fp32"),),
        "model.layers.1": (record("wte.packed", 7), record("wte.scales", 1, dtype="fp32")),
    }
    found = estimate(reader)
    assert found.checkpoint == FormatEstimate(
        largest_layer="model.embed",
        largest_layer_bytes=4 * WORDS * WIDTH,
        total_bytes=4 * WORDS * WIDTH + 18,
        train_adam_bytes=None,
        counted=Counted.HEADERS,
    )
    assert found.inference["checkpoint"].weights_bytes == 4 * WORDS * WIDTH + 18


def test_a_scheme_without_headers(reader: StandInReader) -> None:
    reader.changes["scheme"] = Scheme(name="mxfp4", groups=(Group(form=Mxfp4(), roles=(TensorRole.LINEAR,)),))
    found = estimate(reader)
    assert found.checkpoint is not None
    assert found.checkpoint.counted is Counted.TENSORS
    assert found.checkpoint.total_bytes == found.formats["mxfp4"].total_bytes
    assert found.scheme is not None


def test_neither(reader: StandInReader) -> None:
    assert estimate(reader).checkpoint is None


def machine(*capacities: int) -> Inventory:
    devices = [
        make_device(f"gpu{number}", capacity_bytes=capacity) for number, capacity in enumerate(capacities)
    ]
    return make_inventory(devices, [make_link(device.id) for device in devices])


def test_what_fits(reader: StandInReader) -> None:
    in_nf4 = estimate(reader).inference["nf4"]
    capacity = in_nf4.weights_bytes + in_nf4.kv_bytes + in_nf4.activation_bytes[1] + 64 * 64
    reader.asked.clear()
    found = estimate(reader, fits=machine(capacity), dtypes=("fp32", "int4", "nf4"))
    assert found.fits is not None
    assert found.fits.formats["int4"] is None
    fp32, nf4 = found.fits.formats["fp32"], found.fits.formats["nf4"]
    assert fp32 is not None
    assert nf4 is not None
    assert (fp32.devices, fp32.accelerators_context, fp32.max_context) == ((), None, None)
    assert (nf4.devices, nf4.accelerators_context, nf4.max_context) == (("node0/gpu0",), 64, 64)
    assert {options.context for _, options in reader.asked} <= {None, 128, 256, 512, MAX_CONTEXT}


def test_the_context_that_is_asked_for_is_read_once(reader: StandInReader) -> None:
    estimate(reader, context=64, fits=machine(10**12), dtypes=("bf16", "nf4"))
    contexts = [options.context for _, options in reader.asked]
    assert sorted(contexts) == sorted(set(contexts))
    assert MAX_CONTEXT in contexts


def test_adapters(reader: StandInReader) -> None:
    recipes = [one.recipe.value for one in estimate(reader, lora="4,q").training]
    assert recipes == ["adam", "mixed-adam", "adam-8bit", "lora", "qlora"]


def test_the_python_name(reader: StandInReader) -> None:
    found = bayplan.estimate(Path("hand/made"), dtypes=("nf4",))
    assert list(found.formats) == ["nf4"]
    assert isinstance(found, bayplan.Estimate)


def test_the_keywords_are_the_options() -> None:
    assert set(EstimateKeywords.__annotations__) == {
        field.name for field in msgspec.structs.fields(EstimateOptions)
    }


def test_a_string_is_no_list_of_formats(reader: StandInReader) -> None:
    with pytest.raises(UsageError) as caught:
        bayplan.estimate("hand/made", dtypes="nf4")  # type: ignore[arg-type]
    assert str(caught.value) == "dtypes: text where several are expected: got 'nf4', needed a tuple"


def test_keys_that_others_rely_on(reader: StandInReader) -> None:
    tree = parse(encode_estimate(estimate(reader)), where="", max_bytes=10**6)
    assert isinstance(tree, dict)
    keys = ("model", "class", "params", "formats", "tied", "kv_bytes", "activation_bytes", "fits")
    assert not set(keys) - set(tree)
    formats = tree["formats"]
    assert isinstance(formats, dict)
    for row in formats.values():
        assert isinstance(row, dict)
        assert list(row)[:4] == ["largest_layer_bytes", "largest_layer", "total_bytes", "train_adam_bytes"]


def test_equal_questions_have_equal_answers(reader: StandInReader) -> None:
    options = {"lora": "4", "fits": machine(10**8, 10**9)}
    assert encode_estimate(estimate(reader, **options)) == encode_estimate(estimate(reader, **options))
