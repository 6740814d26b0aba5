"""Whether this machine may have an accelerator, told without importing torch.

Owns the signs. Importing torch takes seconds, and most machines that plans are made on compute on their CPU:
torch is asked only where it might say yes. Every doubt counts as a sign.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

_CUDA_SIGNS = (
    "dev/nvidia*",  # the driver's own
    "dev/dxg",  # Windows' driver, under WSL
    "dev/nvhost*",  # Jetson
    "dev/nvmap",
    "dev/nvgpu",
    "proc/driver/nvidia",
)
_ROCM_SIGNS = ("dev/kfd", "dev/dxg")
_XPU_SIGNS = ("dev/dri", "dev/dxg")
_PRELOADED = ("LD_PRELOAD", "LD_AUDIT")
"""Software that lends a GPU of another machine comes in by these, without any device file."""


def may_have_accelerator(root: Path = Path("/")) -> bool:
    """Return whether torch, asked, might show an accelerator; False only if it surely would not.

    Args:
        root: Where `dev` and `proc` are found.
    """
    if sys.platform != "linux" or any(os.environ.get(name) for name in _PRELOADED):
        return True
    if entry_points(group="torch.backends"):
        return True  # a vendor's extension, which torch loads by itself
    signs = {"cuda": _CUDA_SIGNS, "hip": _ROCM_SIGNS, "xpu": _XPU_SIGNS}
    built_for = torch_backends()
    return any(
        any(root.glob(pattern))
        for backend, patterns in signs.items()
        if built_for is None or backend in built_for
        for pattern in patterns
    )


def torch_backends() -> frozenset[str] | None:
    """Return those of `cuda`, `hip` and `xpu` that the installed torch is built for; None: it does not say.

    torch writes them into its module `version` as plain assignments, which is read and not run.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        tree = ast.parse((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    values: dict[str, object] = {}
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        value = getattr(node, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                values[target.id] = value.value
    names = ("cuda", "hip", "xpu")
    if any(name not in values for name in names):
        return None
    return frozenset(name for name in names if values[name] is not None)
