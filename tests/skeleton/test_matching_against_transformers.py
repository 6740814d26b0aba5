"""Which modules a list of names leaves, beside transformers' own judgement."""

from __future__ import annotations

import re

from form_graphs import block, graph, linear
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers.quantizers.quantizers_utils import should_convert_module

from bayplan.schemas.format_bytes import LlmInt8
from bayplan.schemas.graph import TensorRole
from bayplan.schemas.quantization import Group, Scheme, quantized_weights

PARTS = st.sampled_from(("layers", "1", "11", "mlp", "gate", "gate_proj", "a", "lm_head"))
PATHS = st.lists(PARTS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.lists(
    st.sampled_from(
        ("layers", "1", "mlp", "gate", "a", ".", ".*", "*", "|", "_proj", "(", ")", "^", "$", "lm_head")
    ),
    min_size=1,
    max_size=5,
).map("".join)


@given(st.lists(PATHS, unique=True, min_size=1, max_size=5), st.lists(PATTERNS, max_size=3))
def test_the_same_modules_are_left(paths: list[str], patterns: list[str]) -> None:
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error:
        assume(False)
    scheme = Scheme(
        name="some",
        groups=(Group(form=LlmInt8(), roles=(TensorRole.LINEAR,)),),
        not_converted=tuple(patterns),
        keeps_default=False,
    )
    plain = graph(block("all", *(linear(f"{path}.weight", 2, 2) for path in paths)))
    wanted = {f"{path}.weight" for path in paths if should_convert_module(path, patterns)}
    assert set(quantized_weights(plain, scheme)) == wanted
