"""The key of the graph cache: everything that decides what reading a model gives, in one SHA-256.

Owns what goes into the key. Made without importing the libraries that it names; what they are is told by
where they lie, how old they are and what else is installed. A field that is added to the options or to the
source is in the key without a line here: only what is known not to count is left out.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import re
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

import msgspec

from bayplan.planner.hardware.accelerator_signs import may_have_accelerator
from bayplan.schemas.strict_json import sha256_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bayplan.planner.model.source import ModelSource
    from bayplan.planner.options import PlanOptions

Digests = tuple[tuple[str, str], ...]
"""Files with their digests, sorted."""

LIBRARIES = ("bayplan", "torch", "transformers", "huggingface_hub", "timm", "diffusers")
"""Those whose code makes the graph."""

ENTRY_VERSION = 2
"""Bump when what an entry holds changes its meaning; a new field of a struct changes bayplan's own files."""

_PLACING_OPTIONS = frozenset(
    {
        "device_map",
        "format_config",
        "free",
        "inventory",
        "max_memory",
        "objective",
        "pins",
        "no_spill",
        "previous",
        "time_limit_s",
        "use_cache",
    }
)
"""Read after the model, when it is placed."""
_DIGESTED_FIELDS = frozenset({"config_path", "parse"})
"""Of the source; what they lead to is in the key as digests."""

# Variables by which the libraries choose code paths; any of them may, so all with these names count.
_VARIABLES = (
    "ACCELERATE_",
    "CUDA_",
    "DIFFUSERS_",
    "DISABLE_",
    "FLASH_ATTENTION_",
    "HF_",
    "HIP_",
    "PT_HPU_",
    "PYTORCH_",
    "ROCR_",
    "TIMM_",
    "TORCH_",
    "TRANSFORMERS_",
    "USE_",
    "XLA_",
    "ZE_",
)
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")
_OF_TOKENIZERS = ("tokenizer", "vocab", "merges", "special_tokens")
"""How the names of JSON files begin that may be large and say nothing of a graph."""
_MAX_CONFIGS_BYTES = 64 * 2**20
"""Of all JSON files together; indexes of the largest checkpoints have a third of it. A config may lie among
data sets."""
_OWN_CODE = re.compile(r'"auto_map"\s*:')
"""In a config: the classes that come with it."""
_OWN_GENERATE = "custom_generate"
"""Folder of a checkpoint's own `generate`, which no config names."""


class _Ingredients(msgspec.Struct, frozen=True, kw_only=True):
    """What the key is the digest of."""

    entry_version: int
    bayplan_version: str
    interpreter: tuple[str, ...]
    libraries: tuple[tuple[str, str, int, int], ...]
    """Name, file, length and time of change."""
    installed: tuple[tuple[str, int], ...]
    """Every installed distribution, its version in its name, and every importable name without a dot, with
    their times of change: which optional packages there are changes what a model's code does. A package's is
    that of its `__init__.py`; one without is not seen."""
    environment: tuple[tuple[str, str], ...]
    may_have_accelerator: bool
    source: dict[str, object]
    options: dict[str, object]
    files: Digests
    """What the libraries may read beside the config, with digests."""


def graph_key(source: ModelSource, options: PlanOptions, files: Digests) -> str:
    """Return the key under which what is read of this model is kept, in 64 hex digits.

    Args:
        source: From `find_source` or `open_source`.
        options: Those that the model is read with.
        files: From `digest_files`.
    """
    ingredients = _Ingredients(
        entry_version=ENTRY_VERSION,
        bayplan_version=version("bayplan"),
        interpreter=(sys.version, sys.implementation.cache_tag or "", sys.platform, platform.machine()),
        libraries=tuple(map(_library, LIBRARIES)),
        installed=tuple(sorted(set(_installed()))),
        environment=tuple(sorted(_environment())),
        may_have_accelerator=may_have_accelerator(),
        source=_fields(source, leave_out=_DIGESTED_FIELDS),
        options=_fields(options, leave_out=_PLACING_OPTIONS),
        files=files,
    )
    return hashlib.sha256(msgspec.msgpack.encode(ingredients, order="deterministic")).hexdigest()


def digest_files(source: ModelSource, options: PlanOptions) -> Digests | None:
    """Return the digests of the config and of all beside it that the libraries may read.

    Args:
        source: From `find_source` or `open_source`.
        options: `trust_remote_code` counts.

    Returns:
        None where they could not tell a change: the code of a factory, or trusted code of the checkpoint, may
        read anything, and what cannot be read cannot be compared. Nor are gigabytes read that happen to lie
        beside a config.
    """
    if source.factory is not None:
        return None
    if source.config_path is None:
        return ()  # a library's own model
    folder = source.config_path.parent
    try:
        if options.trust_remote_code and _brings_code(source.config_path):
            return None
        paths = {source.config_path}
        for path in folder.glob("*.json"):
            if not path.name.startswith(_OF_TOKENIZERS) and path.is_file():
                paths.add(path)
        if sum(path.stat().st_size for path in paths) > _MAX_CONFIGS_BYTES:
            return None
        return tuple(
            (path.relative_to(folder).as_posix(), sha256_digest(path.read_bytes())) for path in sorted(paths)
        )
    except OSError:
        return None


def _fields(struct: msgspec.Struct, *, leave_out: frozenset[str]) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__ if name not in leave_out}


def _library(name: str) -> tuple[str, str, int, int]:
    """Return where a library is, or would be imported from, and the length and age of its first file."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # imported, but nothing says from where
        return name, "?", 0, 0
    if spec is None or spec.origin is None:
        return name, "", 0, 0
    try:
        found = os.stat(spec.origin)
    except OSError:
        return name, spec.origin, 0, 0
    return name, spec.origin, found.st_size, found.st_mtime_ns


def _installed() -> Iterator[tuple[str, int]]:
    endings = (*_INSTALLED, *importlib.machinery.all_suffixes())
    script = getattr(sys.modules["__main__"], "__file__", None)  # edited often, and nobody imports it
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    is_whole = entry.name.endswith(endings)
                    if entry.path == script or not (is_whole or entry.name.isidentifier()):
                        continue
                    path = entry.path if is_whole else os.path.join(entry.path, "__init__.py")
                    with contextlib.suppress(OSError):  # no package, or a link to nowhere
                        yield entry.name, os.stat(path).st_mtime_ns
        except OSError:
            continue  # sys.path names archives and folders that are not there


def _environment() -> Iterator[tuple[str, str]]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLES) and not any(word in name for word in _SECRET_WORDS):
            yield name, value


def _brings_code(config_path: Path) -> bool:
    """Return whether a checkpoint has code of its own that is run where it is trusted.

    Raises:
        OSError: The config cannot be read.
    """
    text = config_path.read_text(encoding="utf-8", errors="replace")
    return _OWN_CODE.search(text) is not None or (config_path.parent / _OWN_GENERATE).is_dir()
