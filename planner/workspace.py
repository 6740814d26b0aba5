"""What the products of quantized weights allocate besides the activations that a trace sees.

A trace runs plain products. Owns the upper bounds on what each quantized one needs on top while it runs.
Knows no device: the bound holds for the kernels of all of them.

References:
    bitsandbytes 0.50: `backends/default/ops.py`, `backends/cpu/ops.py`, `backends/cuda/ops.py`,
    `autograd/_functions.py` and `nn/modules.py`; measured in tests/planner/test_workspace_truth.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayplan.planner.held_tensors import HeldTensor
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.format_bytes import Bnb4Bit, LlmInt8
from bayplan.schemas.graph import Work
from bayplan.schemas.plan import Workload
from bayplan.schemas.types import FloatFormat

_FP32_BYTES = 4
_SLOW_UNPACK_BYTES = 16
"""Per weight: `_dequantize_4bit_compute` has its code in 4 bytes and as an index in 8, and its value in 4."""
_SLOW_BLOCKSIZE = 2048
"""From here on, and for odd rows, bitsandbytes unpacks on CPUs by the slow way."""
_INT8_WEIGHT_BYTES = 4
"""Per weight: without AVX-512 `int8_linear_matmul` makes the weight fp32. With it there are only the columns
of outlier inputs, 4 + 4 + 1 bytes a weight: room for four columns in nine. LLM.int8() (arXiv 2208.07339) has
outliers in less than one in a hundred."""
_INT8_INPUT_BYTES = 11
"""Per input and row while it is quantized: fp16 2, mask 1, scaled 4 and rounded 4; fused kernels need 3."""
_INT8_OUTPUT_BYTES = 16
"""Per output and row: products of int32, the same in fp32, their scales and what comes of it, 4 each; fused
kernels need 6."""
_ROW_BYTES = 8
"""Per row: its scale, and its largest value."""


def workspace_bytes(held: Sequence[HeldTensor], prefill: Work, workload: Workload, dtype: FloatFormat) -> int:
    """Return the most that one product of a block allocates besides activations; 0 without quantized ones.

    Args:
        held: The block's tensors.
        prefill: Its work in the longest call.
        workload: By which the rows of a product are bounded.
        dtype: Data type of the model's activations.
    """
    weights = sum(count * rows * columns for count, rows, columns in map(_linears, held))
    # Where the tokens are not the workload's, such as patches of an image, the work tells how many there are.
    mean = prefill.flops // (2 * weights) if weights else 0
    tokens = workload.batch * max(workload.prefill_chunk, workload.encoder_context or 0)
    return max((_product_bytes(one, prefill, max(tokens, mean), dtype) for one in held), default=0)


def _linears(held: HeldTensor) -> tuple[int, int, int]:
    """Return count, outputs and inputs of a tensor's linear layers; zeros: it is none's."""
    linears = held.record.linears
    return (0, 0, 0) if linears is None else (linears.count, linears.out_features, linears.in_features)


def _product_bytes(held: HeldTensor, prefill: Work, tokens: int, dtype: FloatFormat) -> int:
    if held.form is None:
        return 0
    count, outputs, inputs = _linears(held)
    if not count:
        return _lookup_bytes(held, tokens, dtype)
    # A row takes part with two operations for each weight, so the work bounds the rows: a head has one.
    rows = min(tokens, prefill.flops // (2 * outputs * inputs)) if prefill.flops else tokens
    form = held.form.form
    if isinstance(form, LlmInt8):
        per_row = max(_INT8_INPUT_BYTES * inputs, inputs + _INT8_OUTPUT_BYTES * outputs) + _ROW_BYTES
        return _INT8_WEIGHT_BYTES * outputs * inputs + rows * per_row
    compute_dtype = held.form.entry.compute_dtype or dtype
    width = _num_bytes(compute_dtype)
    cast_bytes = 0 if compute_dtype == dtype else rows * (inputs + outputs) * width
    if isinstance(form, Bnb4Bit):
        return _unpacked_bytes(form, outputs, inputs, width) + cast_bytes
    # The other methods have no product of their own on every device either: the weight is unpacked whole, and
    # its input is quantized where theirs is.
    return outputs * inputs * width + rows * (inputs * _FP32_BYTES + _ROW_BYTES)


def _unpacked_bytes(form: Bnb4Bit, outputs: int, inputs: int, width: int) -> int:
    """Return the bytes of one weight that is unpacked whole, with its scales where they are unpacked too."""
    scales = -(-outputs * inputs // form.blocksize)
    is_slow = inputs % 2 or form.blocksize >= _SLOW_BLOCKSIZE
    per_weight = _SLOW_UNPACK_BYTES if is_slow else width
    return outputs * inputs * per_weight + (2 * _FP32_BYTES * scales if form.double_quant else 0)


def _lookup_bytes(held: HeldTensor, tokens: int, dtype: FloatFormat) -> int:
    """Return what looking up rows of a table takes: fp32 rows, or the table where rows cannot be unpacked."""
    assert held.form is not None, "the caller asks for quantized tables only"
    table_rows, columns = held.record.shape
    form = held.form.form
    if isinstance(form, Bnb4Bit) and columns % form.blocksize:
        return _unpacked_bytes(form, table_rows, columns, _num_bytes(held.form.entry.compute_dtype or dtype))
    return tokens * (columns * (_FP32_BYTES + 1) + _ROW_BYTES)


def _num_bytes(dtype: str) -> int:
    return -(-parse_dtype(dtype).num_bits // 8)
