from __future__ import annotations

import msgspec
import pytest

from bayplan.schemas.format_bytes import BlockFp8, Bnb4Bit, LlmInt8, Mxfp4, WeightForm
from bayplan.schemas.graph import (
    GraphBlock,
    Linears,
    ModelGraph,
    TensorRecord,
    TensorRole,
    TiedGroup,
    Work,
)
from bayplan.schemas.quantization import ASKED_SCHEMES, Group, Matching, Scheme, quantized_weights
from bayplan.schemas.strict_json import sha256_digest

ONE = Linears(count=1, out_features=4, in_features=4)
WORK = Work(flops=0, activation_bytes=0, output_bytes=0)
ROLES = {
    "embed.weight": TensorRole.EMBEDDING,
    "layers.0.attn.q_proj.weight": TensorRole.LINEAR,
    "layers.0.mlp.gate.weight": TensorRole.LINEAR,
    "layers.0.mlp.gate_proj.weight": TensorRole.LINEAR,
    "layers.0.mlp.experts.gate_up_proj": TensorRole.EXPERTS,
    "layers.0.norm.weight": TensorRole.OTHER,
    "layers.1.attn.q_proj.weight": TensorRole.LINEAR,
    "layers.11.attn.q_proj.weight": TensorRole.LINEAR,
    "layers.11.c_fc.weight": TensorRole.CONV1D,
    "layers.11.out.weight": TensorRole.GROUPED_LINEAR,
    "lm_head.weight": TensorRole.LINEAR,
}


def record(fqn: str) -> TensorRecord:
    role = ROLES[fqn]
    is_linear = role not in (TensorRole.EMBEDDING, TensorRole.OTHER)
    linears = ONE if is_linear else None
    return TensorRecord(fqn=fqn, shape=(4, 4), dtype="bf16", num_bytes=32, role=role, linears=linears)


GRAPH = ModelGraph(
    class_name="Model",
    blocks=(
        GraphBlock(
            id="all",
            class_name="Model",
            tensors=tuple(map(record, ROLES)),
            kv_bytes=0,
            prefill=WORK,
            decode=WORK,
        ),
    ),
    edges=(),
    ties=(),
    tree_digest=sha256_digest(b""),
    num_params=0,
    generates=True,
    max_context=None,
    traced=True,
    unquantized=("lm_head.weight",),
)
EVERY = tuple(TensorRole)
FORM = LlmInt8()
Q0, Q1, Q11 = (f"layers.{number}.attn.q_proj.weight" for number in (0, 1, 11))
GATE, GATE_PROJ = "layers.0.mlp.gate.weight", "layers.0.mlp.gate_proj.weight"
EXPERTS = "layers.0.mlp.experts.gate_up_proj"
LINEARS = {fqn for fqn in ROLES if record(fqn).linears is not None}


def changed(scheme: Scheme, graph: ModelGraph = GRAPH) -> set[str]:
    return set(quantized_weights(graph, scheme))


def scheme_with(*names: str, matching: Matching = Matching.BOUNDARY, targets: tuple[str, ...] = ()) -> Scheme:
    roles = tuple(role for role in EVERY if role is not TensorRole.EMBEDDING)
    return Scheme(
        name="some",
        groups=(Group(form=FORM, roles=roles, names=targets),),
        matching=matching,
        not_converted=names,
        keeps_default=False,
    )


@pytest.mark.parametrize(
    ("name", "form", "roles"),
    [
        ("int8", LlmInt8(), {TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.EXPERTS}),
        ("nf4", Bnb4Bit(quant_type="nf4"), {TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.EXPERTS}),
        ("fp4", Bnb4Bit(quant_type="fp4"), {TensorRole.LINEAR, TensorRole.CONV1D, TensorRole.EXPERTS}),
        ("fp8", BlockFp8(), {TensorRole.LINEAR, TensorRole.GROUPED_LINEAR, TensorRole.EXPERTS}),
        ("mxfp4", Mxfp4(), {TensorRole.EXPERTS}),
    ],
)
def test_formats_that_are_asked_for(name: str, form: WeightForm, roles: set[TensorRole]) -> None:
    wanted = {fqn for fqn in ROLES if ROLES[fqn] in roles and fqn != "lm_head.weight"}
    found = quantized_weights(GRAPH, ASKED_SCHEMES[name])
    assert (set(found), set(found.values())) == (wanted, {form})


def test_mxfp4_of_a_model_without_experts_changes_every_linear_layer() -> None:
    (block,) = GRAPH.blocks
    tensors = tuple(tensor for tensor in block.tensors if tensor.role is not TensorRole.EXPERTS)
    dense = msgspec.structs.replace(GRAPH, blocks=(msgspec.structs.replace(block, tensors=tensors),))
    assert changed(ASKED_SCHEMES["mxfp4"], dense) == changed(ASKED_SCHEMES["nf4"], dense)
    assert Q0 in changed(ASKED_SCHEMES["mxfp4"], dense)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("lm_head", {"lm_head.weight"}),
        ("layers.1", {Q1}),
        ("layers.1.", {Q1, Q11, "layers.11.c_fc.weight", "layers.11.out.weight"}),  # a dot is any character
        ("layers.*", LINEARS - {"lm_head.weight"}),
        ("mlp.gate", {GATE}),
        ("gate", {GATE}),
        ("layers.0.mlp.gate", {GATE}),
        ("q_proj", {Q0, Q1, Q11}),
        (r"layers\.(0|11)\.attn", {Q0, Q11}),
        ("a|layers.0", {Q0, GATE, GATE_PROJ, EXPERTS}),
        ("experts", {EXPERTS}),
        ("nothing", set()),
    ],
)
def test_left_up_to_a_boundary_or_as_a_suffix(pattern: str, left: set[str]) -> None:
    assert changed(scheme_with(pattern)) == LINEARS - left


@pytest.mark.parametrize(
    ("target", "left"),
    [
        ("lm_head", {"lm_head.weight"}),
        ("layers.1", set()),
        ("re:.*attn.*", {Q0, Q1, Q11}),
        ("re:attn", set()),
        (r"re:.*mlp\.(gate|up)_proj.*", {GATE_PROJ}),
        (r"re:.*experts.*gate_proj$", {EXPERTS}),
        ("layers.0.mlp.experts.0.gate_proj", {EXPERTS}),
    ],
)
def test_left_by_whole_names(target: str, left: set[str]) -> None:
    assert changed(scheme_with(target, matching=Matching.EXACT)) == LINEARS - left


@pytest.mark.parametrize(
    ("targets", "taken"),
    [
        (("Linear",), LINEARS),
        (("re:.*attn.*", "lm_head"), {Q0, Q1, Q11, "lm_head.weight"}),
        (("Conv2d",), set()),
    ],
)
def test_taken_by_whole_names(targets: tuple[str, ...], taken: set[str]) -> None:
    assert changed(scheme_with(matching=Matching.EXACT, targets=targets)) == taken


@pytest.mark.parametrize(
    ("names", "targets", "taken"),
    [
        ((), (), LINEARS - {"lm_head.weight"}),
        ((r".*\.mlp\.",), (), LINEARS - {"lm_head.weight", GATE, GATE_PROJ, EXPERTS}),
        ((r"mlp",), (), LINEARS - {"lm_head.weight"}),
        ((), ("attn.q_proj",), {Q0, Q1, Q11}),
    ],
)
def test_inside_numbered_modules(names: tuple[str, ...], targets: tuple[str, ...], taken: set[str]) -> None:
    assert changed(scheme_with(*names, matching=Matching.NUMBERED, targets=targets)) == taken


def test_the_default_is_left_where_the_scheme_says_so() -> None:
    scheme = msgspec.structs.replace(scheme_with("q_proj"), keeps_default=True)
    assert changed(scheme) == LINEARS - {Q0, Q1, Q11, "lm_head.weight"}


def test_tied_weights_are_always_left() -> None:
    ties = (TiedGroup(fqns=(Q0, "other.weight"), num_bytes=32),)
    assert changed(scheme_with(), msgspec.structs.replace(GRAPH, ties=ties)) == LINEARS - {Q0}


def test_only_a_part_of_the_model() -> None:
    scheme = msgspec.structs.replace(scheme_with(), inside="layers.1")
    assert changed(scheme) == {Q1}


def test_the_first_group_decides() -> None:
    groups = (
        Group(form=Mxfp4(), roles=(TensorRole.EXPERTS,)),
        Group(form=FORM, roles=EVERY, names=("embed", "experts", "q_proj")),
    )
    found = quantized_weights(GRAPH, Scheme(name="some", groups=groups))
    assert found == {
        "embed.weight": FORM,
        EXPERTS: Mxfp4(),
        **dict.fromkeys((Q0, Q1, Q11), FORM),
    }


def test_description() -> None:
    groups = (
        Group(form=Mxfp4(), roles=(TensorRole.EXPERTS,)),
        Group(form=FORM, roles=(TensorRole.LINEAR,)),
        Group(form=FORM, roles=(TensorRole.CONV1D,)),
    )
    assert Scheme(name="some", groups=groups).describe() == (
        "mxfp4: fp4 with a one-byte scale per 32 weights of a row;"
        " int8 of bitsandbytes with a scale per output"
    )
