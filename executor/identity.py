"""Is this folder the checkpoint that the plan was made for?

Compares bytes before it believes them: config and shard headers are hashed and held against the plan, and
only headers that are the planned ones are parsed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from bayplan.executor.open_files import FileStamp
from bayplan.schemas.checkpoint import CONFIG_NAME, LocalCheckpoint
from bayplan.schemas.checkpoint_index import unreadable
from bayplan.schemas.errors import BayplanError, PlanRefused, RefusalKind
from bayplan.schemas.safetensors_header import RawHeader, read_raw_header
from bayplan.schemas.sizes import format_size
from bayplan.schemas.strict_json import sha256_digest
from bayplan.skeleton.build import build_model
from bayplan.skeleton.config import choose_class, load_config
from bayplan.skeleton.config_file import ModelError
from bayplan.skeleton.formats import torch_dtype
from bayplan.skeleton.tree import tree_digest

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedModel

    from bayplan.schemas.plan import Plan, Shard
    from bayplan.schemas.progress import Progress

_HASH_BYTES = 8 * 2**20
_SHOWN_DIFFERENCES = 8


class IdentifiedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is the planned checkpoint."""

    checkpoint: LocalCheckpoint
    headers: dict[str, RawHeader]
    """By shard name."""
    stamps: dict[str, FileStamp]
    """State of each shard, taken before its header was read."""


def build_planned_model(plan: Plan, folder: Path) -> PreTrainedModel:
    """Return the plan's class built from the config in `folder`, its parameters on meta.

    Raises:
        ModelError: As `load_config`, `choose_class` and `build_model`.
    """
    trust = plan.model.trust_remote_code
    config = load_config(folder, trust_remote_code=trust)
    model_class = choose_class(config, name=plan.model.class_name, folder=folder, trust_remote_code=trust)
    dtype = torch_dtype(plan.model.dtype)
    return build_model(config, model_class, dtype, folder=folder, trust_remote_code=trust)


def identify(plan: Plan, checkpoint: LocalCheckpoint) -> IdentifiedCheckpoint:
    """Check a folder's config and shards against the plan's.

    Args:
        plan: A bound plan.
        checkpoint: An opened folder.

    Returns:
        The shards' headers, not parsed, and their state.

    Raises:
        PlanRefused: FOREIGN: the folder holds another model.
        PlanRefused: FOREIGN: its config is not the planned one, and makes no model here.
        PlanRefused: STALE: the same model, but config or shards are not the planned ones; each is named.
        BayplanError: The folder has no config.
        BayplanError: The config cannot be read.
        CheckpointError: UNREADABLE: a shard is a link that leads nowhere, or the system refuses.
        SafetensorsFormatError: A shard is too short for its header, or cannot be read.
    """
    assert plan.model.checkpoint is not None, "only bound plans are identified"
    if checkpoint.config_path is None:
        raise BayplanError("no config beside the weights", where=str(checkpoint.folder), needed=CONFIG_NAME)
    try:
        config_bytes = checkpoint.config_path.read_bytes()
    except OSError as error:
        where, got = str(checkpoint.config_path), error.strerror or str(error)
        raise BayplanError("the config cannot be read", where=where, got=got) from error
    is_same_config = sha256_digest(config_bytes) == plan.model.config_digest
    if not is_same_config:
        _refuse_other_model(plan, checkpoint)
    headers: dict[str, RawHeader] = {}
    stamps: dict[str, FileStamp] = {}
    differences = [] if is_same_config else [f"{CONFIG_NAME} has other bytes"]
    planned = {shard.file: shard for shard in plan.model.checkpoint.shards}
    for name in checkpoint.shard_names:
        if name not in planned:
            differences.append(f"{name} is new")
            continue
        path = checkpoint.shard_path(name)
        try:
            stamps[name] = FileStamp.of(path.stat())
        except OSError as error:
            raise unreadable(str(path), error) from error
        headers[name] = read_raw_header(path)
        differences += _shard_differences(planned[name], headers[name])
    differences += [f"{name} is missing" for name in planned if name not in checkpoint.shard_names]
    if differences:
        raise _stale(checkpoint, differences)
    return IdentifiedCheckpoint(checkpoint=checkpoint, headers=headers, stamps=stamps)


def check_tree(plan: Plan, model: nn.Module) -> None:
    """Check that the model built here has the planned tensors.

    Raises:
        PlanRefused: FOREIGN: other tensors from the same config, as another version of the library may have.
        PlanRefused: FOREIGN: another implementation of attention or of experts.
    """
    import transformers

    found = tree_digest(model)
    if found != plan.model.tree_digest:
        raise PlanRefused(
            RefusalKind.FOREIGN,
            f"{plan.model.class_name} has other tensors here",
            got=f"tree {found[:19]} with transformers {transformers.__version__}",
            needed=f"tree {plan.model.tree_digest[:19]}, planned with {plan.model.library_version}",
            hint="install the planned version, or plan again with this one",
        )
    config = getattr(model, "config", None)
    for noun, attribute, planned in (
        ("attention", "_attn_implementation", plan.model.attn_implementation),
        ("experts", "_experts_implementation", plan.model.experts_implementation),
    ):
        there = getattr(config, attribute, None)
        if planned is not None and there != planned:
            raise PlanRefused(
                RefusalKind.FOREIGN,
                f"another {noun} implementation gives other bits",
                got=str(there),
                needed=planned,
                hint="plan again on a machine with the same libraries",
            )


def verify_content(plan: Plan, identified: IdentifiedCheckpoint, progress: Progress) -> bool:
    """Hash the shards for which the plan holds a hash; return whether that is all of them.

    Raises:
        PlanRefused: STALE: a shard's tensors are not the planned ones, though its header is.
    """
    assert plan.model.checkpoint is not None, "only bound plans are verified"
    shards = plan.model.checkpoint.shards
    hashed = [shard for shard in shards if shard.content_sha256 is not None]
    total_bytes = sum(shard.num_bytes for shard in hashed)
    done_bytes = 0
    differences = []
    for shard in hashed:
        found = hashlib.sha256()
        with identified.checkpoint.shard_path(shard.file).open("rb", buffering=0) as file:
            while piece := file.read(_HASH_BYTES):
                found.update(piece)
                done_bytes += len(piece)
                progress("verify", done_bytes, total_bytes)
        if found.hexdigest() != shard.content_sha256:
            differences.append(f"{shard.file} has other tensor bytes")
    if differences:
        raise _stale(identified.checkpoint, differences)
    return len(hashed) == len(shards)


def _refuse_other_model(plan: Plan, checkpoint: LocalCheckpoint) -> None:
    """Raise if the folder's config makes another model than the planned one."""
    where = str(checkpoint.folder)
    hint = "give the folder of the planned model, or plan for this one"
    needed = f"{plan.model.class_name} ({plan.model.num_params} parameters)"
    try:
        config = load_config(checkpoint.folder, trust_remote_code=plan.model.trust_remote_code)
    except ModelError as error:
        raise PlanRefused(
            RefusalKind.FOREIGN,
            "the folder's config is another, and makes no model here",
            where=where,
            got=error.what + (f" ({error.got})" if error.got else ""),
            needed=needed,
            hint=hint,
        ) from error
    cause: ModelError | None = None
    try:
        model = build_planned_model(plan, checkpoint.folder)
    except ModelError as error:
        got, cause = error.what, error
    else:
        if tree_digest(model) == plan.model.tree_digest:
            return
        got = f"{sum(param.numel() for param in model.parameters())} parameters"
    named = ", ".join(config.architectures or ()) or f"a config of {config.model_type}"
    raise PlanRefused(
        RefusalKind.FOREIGN,
        "the folder holds another model",
        where=where,
        got=f"{named} ({got})",
        needed=needed,
        hint=hint,
    ) from cause


def _shard_differences(shard: Shard, header: RawHeader) -> list[str]:
    if header.file_bytes != shard.num_bytes:
        sizes = f"{format_size(header.file_bytes)}, planned {format_size(shard.num_bytes)}"
        return [f"{shard.file} has {header.file_bytes} bytes ({sizes})"]
    if header.digest != shard.header_digest:
        return [f"{shard.file} has another header"]
    return []


def _stale(checkpoint: LocalCheckpoint, differences: list[str]) -> PlanRefused:
    shown = "; ".join(differences[:_SHOWN_DIFFERENCES])
    more = len(differences) - _SHOWN_DIFFERENCES
    return PlanRefused(
        RefusalKind.STALE,
        "the checkpoint changed since the plan was made",
        where=str(checkpoint.folder),
        got=shown + (f"; and {more} more" if more > 0 else ""),
        needed="the planned files",
        hint="get the planned revision, or plan again from this folder",
    )
