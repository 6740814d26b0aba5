import pytest
import torch

from bayplan.planner.hardware.calibrate_blocks import BlockStack
from bayplan.planner.hardware.calibration_effort import BlockSize
from bayplan.planner.hardware.timing import Stopwatch
from bayplan.planner.model.trace import trace_model
from bayplan.schemas.plan import Workload

SIZE = BlockSize(
    hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=8, fewer=1, more=3
)
WEIGHTS = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48 + 2 * 32


def stack(dtype: torch.dtype = torch.float32) -> BlockStack:
    return BlockStack(SIZE, dtype, torch.device("cpu"), repeats=3)


def steps(*taken_ns: int) -> Stopwatch:
    """Return a stopwatch by which three runs in a row take each of these times."""
    readings = iter([reading for step in taken_ns for _ in range(3) for reading in (0, step)])
    return Stopwatch(lambda: next(readings))


@pytest.mark.parametrize(("dtype", "item_bytes"), [(torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_are_those_of_one_block(dtype: torch.dtype, item_bytes: int) -> None:
    times = stack(dtype).times(10, steps(100, 100, 100, 100))
    assert times.weight_bytes == WEIGHTS * item_bytes
    assert times.cache_bytes == 2 * 10 * 2 * 8 * item_bytes


def test_a_block_is_what_more_blocks_add() -> None:
    assert stack().block_ns(0, steps(5_000, 25_000)) == 10_000


def test_a_block_takes_no_negative_time() -> None:
    assert stack().block_ns(0, steps(40_000, 10_000)) == 0


def test_both_contexts_are_timed() -> None:
    times = stack().times(10, steps(5_000, 25_000, 5_000, 45_000))
    assert (times.empty_ns, times.full_ns) == (10_000, 20_000)


def test_operations_are_about_those_of_a_trace() -> None:
    """A trace takes the dearer way where a mask might be needed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).eval()
    workload = Workload(batch=1, context=16, encoder_context=None, prefill_chunk=16, kv_dtype="fp32")
    traced = next(block for block in trace_model(model, workload).blocks if block.id == "model.layers.1")
    counted = stack().num_operations()
    assert 0.85 * traced.decode.num_operations < counted <= traced.decode.num_operations


def test_random_numbers_are_left_to_the_caller() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    stack().block_ns(0, steps(1, 1))
    assert torch.equal(torch.rand(3), expected)
