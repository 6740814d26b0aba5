"""Other tools' answers to "how big is it", each in a fresh process of the environment that holds them.

Scripts as text, since nothing here may import them; and how a process is run, timed, limited and stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

PEER_SECONDS = 60
PEER_BYTES = 20 * 2**30
"""A peer that takes longer, or more address space, is stopped and marked."""

ACCELERATE = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import accelerate.commands.estimate as estimate
folder = sys.argv[1]
# What the command asks the Hub for first; everything after that is its own code.
config = json.loads((Path(folder) / "config.json").read_text())
estimate.verify_on_hub = lambda repo, token=None: SimpleNamespace(config=config, library_name="transformers")
model = estimate.create_empty_model(folder, "transformers")
total, (largest, names) = estimate.calculate_maximum_sizes(model)
print(json.dumps({"class": type(model).__name__, "total_bytes": total, "largest_bytes": largest}))
"""
"""What `accelerate estimate-memory` computes, from the config in a folder instead of the Hub."""

HF_MEM = """
import sys
import httpx2
import hf_mem.cli
hub = sys.argv.pop(1)
get = httpx2.AsyncClient.get
def local(self, url, **options):
    return get(self, str(url).replace("https://huggingface.co", hub), **options)
httpx2.AsyncClient.get = local
hf_mem.cli.main()
"""
"""hf-mem's own command, with the Hub's address replaced by that of a server on this machine."""

TRUE_CACHE = """
import json, sys, torch, transformers
folder, class_name, dtype, context, encoder_context = sys.argv[1:6]
transformers.logging.set_verbosity_error()
config = transformers.AutoConfig.from_pretrained(folder)
with torch.device("meta"), torch.no_grad():
    model = getattr(transformers, class_name)._from_config(config, dtype=getattr(torch, dtype)).eval()
    ids = torch.zeros(1, int(context), dtype=torch.long)
    inputs = {"input_ids": ids}
    if config.is_encoder_decoder:
        encoded = torch.zeros(1, int(encoder_context), dtype=torch.long)
        inputs = {"input_ids": encoded, "decoder_input_ids": ids}
    output = model(**inputs, use_cache=True)
cache = output.get("past_key_values", output.get("cache_params"))
found, seen = {}, set()
def walk(value, depth=6):
    if isinstance(value, torch.Tensor):
        found[id(value)] = value.nbytes
    elif depth and id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            items = value.values()
        elif isinstance(value, (list, tuple)):
            items = value
        else:
            items = getattr(value, "__dict__", {}).values()
        for item in list(items):
            walk(item, depth - 1)
walk(cache)
print(json.dumps({"kv_bytes": sum(found.values())}))
"""
"""Bytes of the cache that one plain forward of transformers on the meta device returns."""


class Ran(NamedTuple):
    """A process that has ended."""

    out: str
    error: str
    """Empty: it went well. Else the line that says `error: `, or the last one, or why it was stopped."""
    wall_ns: int
    peak_rss_bytes: int

    def figures(self) -> dict[str, int]:
        """Return what is kept of every sample."""
        return {"wall_ns": self.wall_ns, "peak_rss_bytes": self.peak_rss_bytes}


def run(
    arguments: list[str],
    *,
    environment: dict[str, str] | None = None,
    max_seconds: int = 600,
    max_bytes: int | None = None,
) -> Ran:
    """Run a command in a fresh process with its own group; stop it when it takes too long.

    The peak resident set of a child is never below that of the process that started it: this one imports
    neither torch nor transformers.
    """
    start = time.perf_counter_ns()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            arguments,
            stdout=out,
            stderr=err,
            env=os.environ | (environment or {}),
            process_group=0,
        )
        if max_bytes is not None:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (max_bytes, max_bytes))
        stopped = threading.Event()

        def stop() -> None:
            stopped.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(max_seconds, stop)
        timer.start()
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        wall_ns = time.perf_counter_ns() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, lines = out.read(), [line for line in err.read().splitlines() if line.strip()]
    error = ""
    if stopped.is_set():
        error = f"stopped after {max_seconds} s"
    elif process.returncode:
        said = [line for line in lines if line.startswith("error: ")]
        error = (said or lines or [f"exit code {process.returncode}"])[-1]
    return Ran(text, error, wall_ns, usage.ru_maxrss * 1024)


def last_json(ran: Ran) -> dict[str, object]:
    """Return the JSON in the last line of what a process printed, or its error."""
    if ran.error:
        return {"error": ran.error}
    found = json.loads(ran.out.strip().splitlines()[-1])
    assert isinstance(found, dict)
    return found


def run_peer(python: str, script: str, *arguments: str, max_seconds: int = PEER_SECONDS) -> Ran:
    """Run one of the scripts above under the limits for peers, without the network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return run(
        [python, "-c", script, *arguments],
        environment=offline,
        max_seconds=max_seconds,
        max_bytes=PEER_BYTES,
    )
