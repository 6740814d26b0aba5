from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
import transformers
from tiny_models import ARCHITECTURES, workload_for

from bayplan.planner.model.trace import trace_model

LOGGER = transformers.logging.get_logger("transformers.models.llama.modeling_llama")


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


class Chatty(transformers.LlamaForCausalLM):
    """A model that tells of its kernels."""

    fails = False

    def forward(self, *args: object, **kwargs: object) -> object:
        LOGGER.warning("falling back")
        if self.fails:
            raise ValueError("no")
        return super().forward(*args, **kwargs)


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """What transformers lets through at its own default level."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_warning()
    listener = Listener()
    LOGGER.addHandler(listener)
    yield listener.messages
    LOGGER.removeHandler(listener)
    transformers.logging.set_verbosity(level)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_model_logs_in_a_trace_is_not_heard(heard: list[str], fails: bool) -> None:
    with torch.device("meta"):
        model = Chatty._from_config(transformers.LlamaConfig(**ARCHITECTURES["llama"][1])).eval()
    model.fails = fails
    graph = trace_model(model, workload_for(model, 8))
    assert graph.traced is not fails
    assert heard == []
    assert transformers.logging.get_verbosity() == transformers.logging.WARNING
    LOGGER.warning("after the trace")
    assert heard == ["after the trace"]
