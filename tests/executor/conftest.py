from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from executor_models import save_llama


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny products are faster alone, and several test processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers, untied, one shard, fp32."""
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def sharded_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five layers, tied, several shards, bf16."""
    return save_llama(
        tmp_path_factory.mktemp("sharded"), tied=True, dtype=torch.bfloat16, max_shard_size="100KB"
    )
