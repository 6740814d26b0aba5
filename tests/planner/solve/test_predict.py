from __future__ import annotations

import msgspec
import pytest
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    gpus,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
    make_node,
)

from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.machine import Machine
from bayplan.planner.solve.objectives import Placed, Problem, place_for
from bayplan.planner.solve.predict import Prediction, load_ns, predict
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.plan import Workload
from bayplan.schemas.problem import Pin
from bayplan.schemas.types import Objective, Residency

HOST, DISK = Residency.STREAM_HOST, Residency.STREAM_DISK


def placed(
    chain: Chain,
    extra_bytes: int,
    inventory: Inventory | None = None,
    *,
    objective: Objective = Objective.DECODE,
    generates: bool = True,
    pins: tuple[Pin, ...] = (),
) -> Placed:
    own = inventory or gpus(1)
    budgets = {device.id: NO_ACTIVATIONS + extra_bytes for device in own.devices}
    problem = Problem(
        chain=chain,
        machine=Machine(own, budgets),
        constraints=resolve(chain, pins, no_spill=False),
        objective=objective,
        generates=generates,
    )
    found = place_for(problem)
    assert found is not None
    return found


def prediction(
    found: Placed, *, context: int = 8, prefill_chunk: int = 8, generates: bool = True
) -> Prediction:
    workload = Workload(
        batch=1, context=context, encoder_context=None, prefill_chunk=prefill_chunk, kv_dtype="bf16"
    )
    return predict(found, workload, generates=generates)


def test_resident() -> None:
    """64 bytes are read for a token, 128 for a chunk; loading reads them from a disk of 1 GB/s."""
    assert prediction(placed(make_chain([64] * 3), 192)) == Prediction(
        load_ns=192, first_output_ns=3 * 128, decode_ns=192, step_ns=192
    )


def test_every_chunk_of_the_prompt_counts() -> None:
    found = prediction(placed(make_chain([64] * 3), 192), context=70, prefill_chunk=8)
    assert found.first_output_ns == 9 * 3 * 128


def test_without_chunks_there_is_one_forward() -> None:
    assert prediction(placed(make_chain([64] * 3), 192), prefill_chunk=0).first_output_ns == 3 * 128


def test_a_model_that_does_not_generate_steps_in_forwards() -> None:
    own = placed(make_chain([64] * 3), 192, generates=False)
    found = prediction(own, generates=False)
    assert (found.decode_ns, found.step_ns) == (None, 3 * 128)


def test_the_step_is_of_the_objective() -> None:
    found = prediction(placed(make_chain([64] * 3), 192, objective=Objective.PREFILL))
    assert (found.decode_ns, found.step_ns) == (3 * 64, 3 * 128)


def test_with_batches_in_flight_the_step_is_shorter_than_a_token_takes() -> None:
    found = placed(make_chain([64] * 4), 2**20, gpus(2), objective=Objective.THROUGHPUT)
    assert found.batches_in_flight == 2
    times = prediction(found)
    assert (times.decode_ns, times.step_ns) == (4 * 64, 2 * 64)


ALL_STREAM = (Pin(pattern="*", residency=DISK),)


def test_streamed_blocks_are_not_loaded_and_the_first_chunk_waits_for_one() -> None:
    """All stream through two slots but a buffer; the first chunk of 4 x 128 waits 64 for the first block."""
    chain = make_chain([make_cost(64, buffer_bytes=64), 64, 64, 64])
    found = prediction(placed(chain, 64 * 3, pins=ALL_STREAM))
    assert found == Prediction(load_ns=64, first_output_ns=64 + 4 * 128, decode_ns=256, step_ns=256)


@pytest.mark.parametrize("num_chunks", [1, 3, 5, 6, 40, 41])
def test_chunks_beyond_the_steady_state_take_the_same_time(num_chunks: int) -> None:
    chain = make_chain([make_cost(64, prefill_read_bytes=10)] * 5)
    own = placed(chain, 64 * 3, pins=ALL_STREAM)
    ends = [
        prediction(own, context=8 * count).first_output_ns
        for count in (num_chunks, num_chunks + 1, num_chunks + 2)
    ]
    assert ends[2] - ends[1] == ends[1] - ends[0] if num_chunks > 1 else ends[0] < ends[1]


def test_what_waits_in_host_memory_is_loaded() -> None:
    chain = make_chain([64] * 4)
    assert load_ns_of(placed(chain, 64 * 4, pins=(Pin(pattern="*", residency=HOST),))) == 4 * 64
    assert load_ns_of(placed(chain, 64 * 4, pins=ALL_STREAM)) == 0


def load_ns_of(found: Placed) -> int:
    return load_ns(found.task, found.solution.answer)


def test_loading_takes_as_long_as_the_slowest_disk_and_its_latency() -> None:
    slow = Disk(read_bytes_per_second=GIGA // 10, latency_ns=7)
    inventory = make_inventory(
        [make_device("gpu0"), make_device("gpu1", node="node1")],
        [make_link("node0/gpu0"), make_link("node1/gpu1", "node1"), make_link("node0", "node1")],
        nodes=[make_node("node0"), msgspec.structs.replace(make_node("node1"), disk=slow)],
    )
    found = placed(make_chain([64] * 3), 128, inventory)
    on_slow = sum(choice.device == 1 for choice in found.solution.answer.choices)
    assert on_slow in (1, 2)
    assert load_ns_of(found) == 640 * on_slow + 7


def test_loading_without_a_disk_is_not_predicted() -> None:
    inventory = make_inventory([make_device("gpu0")], disk_rate=None)
    assert load_ns_of(placed(make_chain([64]), 64, inventory)) == 0
