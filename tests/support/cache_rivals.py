"""What one of several processes does to a graph cache; a process of its own can import it from here only."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from sample_graphs import read_model_of

from bayplan.planner.model.graph_store import GraphStore


def put_and_get(folder: Path, number: int, key: str, wrong: multiprocessing.Queue[int]) -> None:
    """Replace one entry and take it again, over and over, as several processes do at once."""
    store = GraphStore(folder, max_entries=2)
    possible = [read_model_of("Llama", layers=layers) for layers in (1, 2, 3)]
    for turn in range(25):
        store.put(key, possible[(turn + number) % 3], ())
        store.put(f"{turn % 5}" * 64, possible[0], ())
        found = store.get(key)
        if found is not None and found not in possible:
            wrong.put(turn)
