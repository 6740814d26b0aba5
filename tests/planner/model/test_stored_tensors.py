from __future__ import annotations

import msgspec
from form_graphs import block, experts, graph, linear, record

from bayplan.planner.model.stored_tensors import StoredTensors, stored_tensors
from bayplan.schemas.dtypes import parse_dtype
from bayplan.schemas.graph import Linears, ModelGraph, TensorRole, TiedGroup
from bayplan.schemas.safetensors_entries import TensorEntry

LINEAR = linear("h.0.q.weight", 6, 10)
NORM = record("h.0.norm.weight", (10,), "bf16")
FREQ = record("h.0.freq", (2,), "fp32", is_buffer=True, is_persistent=False)


def entries(**tensors: tuple[str, tuple[int, ...]]) -> list[TensorEntry]:
    """Entries one after the other; names with `__` for dots."""
    made, begin = [], 0
    for name, (dtype, shape) in tensors.items():
        count = 1
        for size in shape:
            count *= size
        end = begin + count * parse_dtype(dtype).num_bits // 8
        made.append(TensorEntry(fqn=name.replace("__", "."), dtype=dtype, shape=shape, begin=begin, end=end))
        begin = end
    return made


def stored(plain: ModelGraph, files: list[TensorEntry], owners: dict[str, str], *whole: str) -> StoredTensors:
    found = stored_tensors(plain, files, owners, frozenset(whole))
    by_block = [record.fqn for records in found.blocks.values() for record in records]
    in_files = [name for name in by_block if name in owners]
    assert sorted([*in_files, *found.copies]) == sorted(owners)
    return found


def test_plain_tensors_and_computed_buffers() -> None:
    files = entries(h__0__q__weight=("fp32", (6, 10)), h__0__norm__weight=("bf16", (10,)))
    names = {entry.fqn: entry.fqn for entry in files}
    found = stored(graph(block("h.0", LINEAR, NORM, FREQ)), files, names, *names)
    assert found.blocks == {
        "h.0": (
            record("h.0.q.weight", (6, 10), "fp32", role=TensorRole.LINEAR),
            NORM,
            FREQ,
        )
    }
    assert found.dtypes == {"h.0.q.weight": "fp32", "h.0.norm.weight": "bf16"}
    assert found.copies == ()


def test_what_belongs_to_a_weight_is_in_its_block() -> None:
    files = entries(
        q__qweight=("int32", (2, 6)),
        q__scales=("fp16", (1, 6)),
        spare__w=("fp32", (3,)),
    )
    owners = {"q.qweight": "h.0.q.weight", "q.scales": "h.0.q.weight"}
    found = stored(graph(block("h.0", LINEAR, FREQ)), files, owners)
    assert found.blocks == {
        "h.0": (
            record("q.qweight", (2, 6), "int32", role=TensorRole.LINEAR, num_values=60),
            record("q.scales", (1, 6), "fp16", num_values=0),
            FREQ,
        )
    }
    assert found.dtypes == {"h.0.q.weight": None}


def test_a_weight_of_eight_bits_with_its_scale() -> None:
    files = entries(q__weight=("fp8_e4m3", (6, 10)), q__weight_scale_inv=("fp32", (1, 1)))
    owners = dict.fromkeys(("q.weight", "q.weight_scale_inv"), "h.0.q.weight")
    (weight, scale) = stored(graph(block("h.0", LINEAR)), files, owners, "q.weight").blocks["h.0"]
    assert (weight.role, weight.num_values, weight.num_bytes) == (TensorRole.LINEAR, 60, 60)
    assert (scale.role, scale.num_values, scale.num_bytes) == (TensorRole.OTHER, 0, 4)


def test_experts_in_tensors_of_their_own() -> None:
    weight = experts("h.0.experts.down", (2, 3, 4), Linears(count=2, out_features=3, in_features=4))
    files = entries(e__0__w=("bf16", (3, 4)), e__1__w=("bf16", (3, 4)))
    owners = dict.fromkeys(("e.0.w", "e.1.w"), weight.fqn)
    found = stored(graph(block("h.0", weight)), files, owners, *owners)
    assert [tensor.num_bytes for tensor in found.blocks["h.0"]] == [24, 24]
    assert found.dtypes == {weight.fqn: "bf16"}
    packed = [msgspec.structs.replace(entry, dtype="int8", end=entry.begin + 12) for entry in files]
    found = stored(graph(block("h.0", weight)), packed, owners, *owners)
    assert [tensor.num_values for tensor in found.blocks["h.0"]] == [12, 12]
    assert found.dtypes == {weight.fqn: None}


def test_parts_in_several_data_types_count_as_the_widest() -> None:
    weight = experts("h.0.experts.down", (2, 3, 4), Linears(count=2, out_features=3, in_features=4))
    files = entries(e__0__w=("bf16", (3, 4)), e__1__w=("fp32", (3, 4)))
    owners = dict.fromkeys(("e.0.w", "e.1.w"), weight.fqn)
    assert stored(graph(block("h.0", weight)), files, owners, *owners).dtypes == {weight.fqn: "fp32"}


TIED = graph(
    block("embed", record("embed.weight", (8, 2), "bf16", role=TensorRole.EMBEDDING)),
    block("head"),
    ties=(TiedGroup(fqns=("embed.weight", "head.weight"), num_bytes=32),),
)


def test_a_tied_weight_that_is_in_the_files_twice_counts_once() -> None:
    files = entries(embed__weight=("bf16", (8, 2)), head__weight=("bf16", (8, 2)))
    names = {entry.fqn: entry.fqn for entry in files}
    found = stored(TIED, files, names, *names)
    assert [tensor.fqn for tensor in found.blocks["embed"]] == ["embed.weight"]
    assert (found.blocks["head"], found.copies) == ((), ("head.weight",))


def test_a_tied_weight_under_the_name_that_no_block_lists() -> None:
    files = entries(head__weight=("bf16", (8, 2)))
    found = stored(TIED, files, {"head.weight": "head.weight"}, "head.weight")
    assert [tensor.fqn for tensor in found.blocks["embed"]] == ["head.weight"]
    assert (found.copies, found.dtypes) == ((), {"embed.weight": "bf16"})


def test_a_persistent_buffer_is_one_of_the_files() -> None:
    mean = record("h.0.mean", (4,), "fp32", is_buffer=True)
    files = entries(h__0__mean=("fp32", (4,)))
    found = stored(graph(block("h.0", mean)), files, {"h.0.mean": "h.0.mean"}, "h.0.mean")
    assert found.blocks == {"h.0": (mean,)}
    assert found.dtypes == {}
