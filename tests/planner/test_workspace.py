from __future__ import annotations

import msgspec
import pytest
from form_graphs import WORKLOAD, linear, record

from bayplan.planner.held_tensors import HeldTensor, NamedForm
from bayplan.planner.workspace import workspace_bytes
from bayplan.schemas.format_bytes import BlockFp8, Bnb4Bit, LlmInt8, WeightForm
from bayplan.schemas.graph import TensorRecord, TensorRole, Work
from bayplan.schemas.plan import Format
from bayplan.schemas.types import FloatFormat

NF4 = Bnb4Bit(quant_type="nf4")
WEIGHT = linear("q.weight", 128, 64)
TABLE = record("embed.weight", (100, 64), "bf16", role=TensorRole.EMBEDDING)
IDLE = Work(flops=0, activation_bytes=0, output_bytes=0)


def held(
    form: WeightForm, record: TensorRecord = WEIGHT, compute_dtype: FloatFormat | None = None
) -> HeldTensor:
    entry = Format(kind="nf4", compute_dtype=compute_dtype)
    return HeldTensor(record=record, form=NamedForm(name="x", form=form, entry=entry))


def products(rows: int, weight: TensorRecord = WEIGHT) -> Work:
    outputs, inputs = weight.shape
    return Work(flops=2 * rows * outputs * inputs, activation_bytes=0, output_bytes=0)


EIGHT_ROWS = products(8)


def needed(*tensors: HeldTensor, work: Work = EIGHT_ROWS) -> int:
    return workspace_bytes(tensors, work, WORKLOAD, "bf16")


def test_plain_products_need_nothing() -> None:
    assert needed(HeldTensor(record=WEIGHT)) == 0
    assert needed() == 0


def test_a_4bit_weight_is_unpacked_whole() -> None:
    """In the data type of its products; the largest counts, since they come one after another."""
    assert needed(held(NF4), held(NF4, linear("k.weight", 32, 64))) == 2 * 128 * 64


def test_products_in_another_data_type_copy_inputs_and_outputs() -> None:
    assert needed(held(NF4, compute_dtype="fp32")) == 4 * 128 * 64 + 4 * 8 * (128 + 64)
    assert needed(held(NF4, compute_dtype="bf16")) == needed(held(NF4))


def test_nested_scales_are_unpacked_too() -> None:
    assert needed(held(Bnb4Bit(quant_type="nf4", double_quant=True))) == 2 * 128 * 64 + 8 * 128


@pytest.mark.parametrize(
    ("form", "weight"),
    [(Bnb4Bit(quant_type="fp4", blocksize=4096), WEIGHT), (NF4, linear("odd.weight", 128, 63))],
)
def test_what_bitsandbytes_unpacks_by_the_slow_way(form: WeightForm, weight: TensorRecord) -> None:
    assert needed(held(form, weight)) == 16 * weight.shape[0] * weight.shape[1]


def test_int8_products() -> None:
    """fp32 weights where there is no kernel; per row int8 inputs, and outputs four times in 4 bytes."""
    assert needed(held(LlmInt8())) == 4 * 128 * 64 + 8 * (64 + 16 * 128 + 8)


def test_int8_inputs_that_are_wider_than_the_outputs() -> None:
    weight = linear("down.weight", 8, 512)
    assert needed(held(LlmInt8(), weight), work=products(8, weight)) == 4 * 8 * 512 + 8 * (11 * 512 + 8)


def test_rows_are_those_that_the_work_allows() -> None:
    """A head makes logits of one position, whatever the prompt."""
    one_row = needed(held(LlmInt8()), work=products(1))
    assert one_row == 4 * 128 * 64 + 64 + 16 * 128 + 8


def test_rows_of_what_is_no_text_follow_from_the_work() -> None:
    """Patches of an image are more than the workload's positions."""
    assert needed(held(LlmInt8()), work=products(100)) == 4 * 128 * 64 + 100 * (64 + 16 * 128 + 8)


def test_an_encoder_has_rows_of_its_own() -> None:
    workload = msgspec.structs.replace(WORKLOAD, batch=2, encoder_context=50)
    found = workspace_bytes([held(LlmInt8())], IDLE, workload, "bf16")
    assert found == 4 * 128 * 64 + 100 * (64 + 16 * 128 + 8)


def test_other_methods_unpack_the_weight_and_quantize_the_input() -> None:
    assert needed(held(BlockFp8())) == 2 * 128 * 64 + 8 * (4 * 64 + 8)


def test_rows_of_a_table_are_unpacked_as_they_are_looked_up() -> None:
    assert needed(held(NF4, TABLE), work=IDLE) == 8 * (5 * 64 + 8)
    assert needed(held(LlmInt8(), TABLE), work=IDLE) == 8 * (5 * 64 + 8)


def test_a_table_whose_rows_do_not_end_with_a_block_is_unpacked_whole() -> None:
    assert needed(held(Bnb4Bit(quant_type="nf4", blocksize=128), TABLE), work=IDLE) == 2 * 100 * 64
