from __future__ import annotations

import msgspec
import pytest
from placement_problems import (
    GIGA,
    NO_ACTIVATIONS,
    make_chain,
    make_cost,
    make_device,
    make_inventory,
    make_link,
)

from bayplan.planner.solve.arrange import Arranger
from bayplan.planner.solve.chain import Chain
from bayplan.planner.solve.constraints import resolve
from bayplan.planner.solve.placement import Solver
from bayplan.planner.solve.predict import Prediction, predict
from bayplan.schemas.hardware import Disk, Inventory
from bayplan.schemas.plan import Workload
from bayplan.schemas.types import Objective


def prediction(
    chain: Chain,
    extra_bytes: int,
    *,
    inventory: Inventory | None = None,
    objective: Objective = Objective.DECODE,
    context: int = 8,
    prefill_chunk: int = 8,
    generates: bool = True,
) -> Prediction:
    inventory = inventory or make_inventory([make_device("gpu0")], [make_link("node0/gpu0")])
    constraints = resolve(chain, (), no_spill=False)
    budgets = {device.id: NO_ACTIVATIONS + extra_bytes for device in inventory.devices}
    placement = Solver(chain, inventory, budgets, constraints, objective).solve()
    assert placement is not None
    workload = Workload(
        batch=1, context=context, encoder_context=None, prefill_chunk=prefill_chunk, kv_dtype="bf16"
    )
    arranger = Arranger(chain, inventory, constraints, objective)
    return predict(placement, arranger, chain, inventory, workload, objective, generates=generates)


def test_resident() -> None:
    """64 bytes are read for a token, 128 for a chunk; loading reads them from a disk of 1 GB/s."""
    assert prediction(make_chain([64] * 3), 192) == Prediction(
        load_ns=192, first_output_ns=3 * 128, decode_ns=192, step_ns=192
    )


def test_every_chunk_of_the_prompt_counts() -> None:
    found = prediction(make_chain([64] * 3), 192, context=70, prefill_chunk=8)
    assert found.first_output_ns == 9 * 3 * 128


def test_a_model_that_does_not_generate_steps_in_forwards() -> None:
    found = prediction(make_chain([64] * 3), 192, objective=Objective.PREFILL, generates=False)
    assert (found.decode_ns, found.step_ns) == (None, 3 * 128)


def test_the_step_is_of_the_objective() -> None:
    found = prediction(make_chain([64] * 3), 192, objective=Objective.PREFILL)
    assert (found.decode_ns, found.step_ns) == (3 * 64, 3 * 128)


def test_streamed_blocks_are_not_loaded_and_the_first_chunk_waits_for_one() -> None:
    """All stream through two slots but a buffer; the first chunk of 4 x 128 waits 64 for the first block."""
    found = prediction(make_chain([make_cost(64, buffer_bytes=64), 64, 64, 64]), 64 * 3)
    assert found == Prediction(load_ns=64, first_output_ns=64 + 4 * 128, decode_ns=256, step_ns=256)


@pytest.mark.parametrize("num_chunks", [1, 3, 5, 6, 40, 41])
def test_chunks_beyond_the_steady_state_take_the_same_time(num_chunks: int) -> None:
    chain = make_chain([make_cost(64, prefill_read_bytes=10)] * 5)
    ends = [
        prediction(chain, 64 * 3, context=8 * count).first_output_ns
        for count in (num_chunks, num_chunks + 1, num_chunks + 2)
    ]
    assert ends[2] - ends[1] == ends[1] - ends[0] if num_chunks > 1 else ends[0] < ends[1]


def test_loading_takes_as_long_as_the_slowest_disk_and_its_latency() -> None:
    one = make_inventory([make_device("gpu0")], [make_link("node0/gpu0")])
    slow = Disk(read_bytes_per_second=GIGA // 10, latency_ns=7)
    inventory = msgspec.structs.replace(
        one,
        nodes=(one.nodes[0], msgspec.structs.replace(one.nodes[0], id="node1", disk=slow)),
        devices=(*one.devices, msgspec.structs.replace(one.devices[0], id="node1/gpu0")),
        links=(*one.links, make_link("node1/gpu0", "node1"), make_link("node0", "node1")),
    )
    assert prediction(make_chain([64] * 3), 128, inventory=inventory).load_ns in (640 + 7, 1280 + 7)


def test_loading_without_a_disk_is_not_predicted() -> None:
    inventory = make_inventory([make_device("gpu0")], disk_rate=None)
    assert prediction(make_chain([64]), 64, inventory=inventory).load_ns == 0
