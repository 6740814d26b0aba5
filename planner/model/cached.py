"""Reading a model, or taking what an earlier reading of the very same found. A hit imports no torch.

Owns when the cache may be used. Code that may read anything is never spoken for: a factory, and trusted code
that comes with a checkpoint, are read anew each time. What the cache cannot see, and therefore trusts, is a
library whose classes somebody changes in memory; those that were registered with transformers it does see.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import TYPE_CHECKING

from bayplan.planner.model.graph_key import LIBRARIES, digest_files, graph_key
from bayplan.planner.model.graph_store import CodeFile, GraphStore, cache_folder
from bayplan.planner.model.source import find_source
from bayplan.planner.model.workload import check_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bayplan.planner.model.facts import ReadModel
    from bayplan.planner.model.source import ModelSource
    from bayplan.planner.options import PlanOptions
    from bayplan.schemas.progress import Progress

_CLOCK_MARGIN_SECONDS = 2
"""How wrong a process's time of start may be beside a file's time of change."""


def cached_read_model(name: str, options: PlanOptions, progress: Progress | None = None) -> ReadModel:
    """Return what the planner needs of the model `name`, as `read_model` does, from the cache if it can.

    Args:
        name: Local folder, config file, Hub id with or without `@revision`, or `package.module:factory`.
        options: As for `read_model`; without `use_cache` nothing is looked up or stored.
        progress: Told of hashing.

    Returns:
        Equal, field by field, to what `read_model` returns now.

    Raises:
        BayplanError: As `read_model`.
    """
    check_counts(
        batch=options.batch,
        context=options.context,
        encoder_context=options.encoder_context,
        prefill_chunk=options.prefill_chunk,
    )
    source = find_source(name, options, progress)
    folder = cache_folder() if options.use_cache and not _has_registered_classes() else None
    files = None if folder is None else digest_files(source, options)
    # The key tells what is installed now. A process may have loaded libraries before they were replaced.
    if folder is None or files is None or loaded_code() is None:
        return _read(source, options)
    store = GraphStore(folder / "graphs")
    key = graph_key(source, options, files)
    found = store.get(key)
    if found is not None:
        return found
    read = _read(source, options)
    code = loaded_code()
    # A file that changed while the model was read may not be what was read.
    if code is not None and digest_files(source, options) == files:
        store.put(key, read, code)
    return read


def _read(source: ModelSource, options: PlanOptions) -> ReadModel:
    """Read the model of a source whose headers are not parsed yet: they come first, as in `read_model`."""
    _ = source.headers
    with _libraries_uncollected() as loaded:
        from bayplan.planner.model.read_model import read_source  # torch and transformers

        loaded()
        return read_source(source, options)


@contextlib.contextmanager
def _libraries_uncollected() -> Iterator[Callable[[], None]]:
    """Keep the garbage collector away from what libraries bring in, until the end of the block.

    A million objects come in with them and stay. To look for garbage among them, again and again while their
    number grows and whenever reading makes more, is a sixth of the time that reading a small model takes.

    Yields:
        To be called when all is imported: from then on what is new is collected as ever.
    """
    may_freeze = gc.isenabled() and not gc.get_freeze_count()  # else somebody has plans of their own

    def loaded() -> None:
        if may_freeze:
            gc.freeze()
            gc.enable()

    if may_freeze:
        gc.disable()
    try:
        yield loaded
    finally:
        if may_freeze:
            gc.enable()
            gc.unfreeze()


def _has_registered_classes() -> bool:
    """Return whether this process gave transformers classes of its own; a fresh one cannot have."""
    if "transformers" not in sys.modules:
        return False
    from bayplan.skeleton.transformers_adapter import has_registered_classes

    return has_registered_classes()


def loaded_code() -> tuple[CodeFile, ...] | None:
    """Return the source files of `LIBRARIES` that this process has loaded, sorted by path.

    Modules that transformers copies from a model's folder are left out: the folder's own are in the key.

    Returns:
        None if one is gone or was changed after the process began, so that it may have loaded another text.
    """
    began = _process_start() - _CLOCK_MARGIN_SECONDS
    files = set()
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] not in LIBRARIES or not isinstance(path, str):
            continue
        if not os.path.dirname(path):
            continue  # torch gives modules that it makes in memory such names
        try:
            found = os.stat(path)
        except OSError:
            return None
        if max(found.st_mtime, found.st_ctime) > began:
            return None
        files.add(CodeFile(path=os.path.abspath(path), num_bytes=found.st_size, changed_ns=found.st_mtime_ns))
    return tuple(sorted(files, key=lambda file: file.path))


def _process_start() -> float:
    """Return when this process began, in seconds since 1970."""
    import psutil

    return float(psutil.Process().create_time())
