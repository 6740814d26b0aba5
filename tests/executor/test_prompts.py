from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bayplan.executor.prompts import Prompts
from bayplan.schemas.errors import BayplanError, UsageError


class Tokenizer:
    """Answers every text with what the test says."""

    pad_token = "<pad>"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __call__(self, texts: list[str], **options: object) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def prompts(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Prompts:
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Tokenizer(answer), raising=True
    )
    return Prompts(Path("folder"), trust_remote_code=False)


def test_tokenizer_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for ask in ("groups_to_generate", "groups_to_embed"):
        with pytest.raises(BayplanError) as raised:
            getattr(prompts(monkeypatch, ValueError("no padding token")), ask)(["a", "b"], 2)
        assert str(raised.value) == "the prompts cannot be tokenized: got ValueError: no padding token"


@pytest.mark.parametrize(
    ("answer", "got"), [({}, "nothing"), ({"input_values": torch.ones(1, 2)}, "input_values")]
)
def test_tokenizer_that_makes_no_ids(monkeypatch: pytest.MonkeyPatch, answer: Any, got: str) -> None:
    with pytest.raises(BayplanError) as raised:
        prompts(monkeypatch, answer).groups_to_generate(["a"], 1)
    assert str(raised.value) == f"the prompts cannot be tokenized: got {got}, needed input_ids"


def test_text_without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor([[5, 6], [0, 0]])
    answer = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1], [0, 0]])}
    for ask in ("groups_to_generate", "groups_to_embed"):
        with pytest.raises(UsageError) as raised:
            getattr(prompts(monkeypatch, answer), ask)(["a b", "\n"], 2)
        assert str(raised.value) == 'a prompt has no tokens: got "\\n", needed at least one'


def test_tokenizer_without_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.tensor([[5, 6]])
    assert prompts(monkeypatch, {"input_ids": ids}).groups_to_generate(["a b"], 1) == [{"input_ids": ids}]
