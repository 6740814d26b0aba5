"""What figures depend on besides the code, as it is written beside them: versions and machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version

from estimate_peers import last_json, run


def surroundings(packages: Iterable[str]) -> dict[str, dict[str, object]]:
    """Return the versions of `packages` and of Python, and the machine."""
    versions: dict[str, object] = {name: version(name) for name in packages}
    return {
        "versions": versions | {"python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "kernel": platform.release(),
        },
    }


def peer_versions(python: str, packages: Iterable[str]) -> dict[str, object]:
    """Return the versions of `packages` in the environment of `python`."""
    script = "import json, sys; from importlib.metadata import version; "
    script += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    found: dict[str, object] = last_json(run([python, "-c", script, *packages]))
    return found
