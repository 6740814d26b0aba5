"""What plain transformers gives for the real checkpoints of `checkpoints.py`: computed once, on a CPU.

The tokens are the same in fp32 and bf16, sharded or not (torch 2.13, transformers 5.24, greedy).
"""

from __future__ import annotations

from typing import NamedTuple


class Continuation(NamedTuple):
    """A prompt and what greedy decoding makes of it."""

    prompt: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """The next 20 tokens."""


CAPITAL = Continuation(
    prompt="The capital of France is",
    prompt_ids=(504, 3575, 282, 4649, 314),
    token_ids=(7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216),
)
ONCE = Continuation(
    prompt="Once upon a time",
    prompt_ids=(6403, 1980, 253, 655),
    token_ids=(
        28, 260, 2240, 282, 23324, 27108, 436, 253, 15114, 39228,
        28, 351, 25854, 41658, 284, 14055, 9018, 30, 1249, 347,
    ),
)  # fmt: skip

SMOLLM2_NUM_PARAMS = 134_515_008
SMOLLM2_NUM_LAYERS = 30
SMOLLM2_CAPITAL_MAX_LOGIT = {"fp32": 17.371265, "bf16": 17.375}
"""Largest logit of the last position of `CAPITAL`'s prompt, that of its first new token."""

MINILM_NUM_PARAMS = 22_713_216
MINILM_FILE_BYTES = 90_868_376
MINILM_UNEXPECTED = "embeddings.position_ids"
"""A tensor of the checkpoint that the model does not have."""
MINILM_SENTENCE = "A cat sits on the mat"
MINILM_EMBEDDING_START = (0.12872, -0.03267, -0.02292, 0.04023, -0.03545)
"""Of the sentence: mean over its tokens, divided by its length; five decimals."""
