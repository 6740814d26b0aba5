"""From what the user calls the checkpoint to a folder on this machine: a path as it is, a Hub id by download.

Downloads only what the plan names: its shards, and the small files beside them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bayplan.schemas.checkpoint import LocalCheckpoint, open_shards
from bayplan.schemas.checkpoint_index import check_shard_name
from bayplan.schemas.errors import BayplanError, UsageError
from bayplan.schemas.hub_id import HubId, parse_hub_id

if TYPE_CHECKING:
    from bayplan.schemas.plan import Plan

_SMALL_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")


def open_checkpoint(plan: Plan, checkpoint: Path | str | None) -> LocalCheckpoint:
    """Return the opened checkpoint for a bound plan.

    Args:
        plan: Names the shards; its source is where the checkpoint comes from if nothing else is given.
        checkpoint: A folder, a file in it, or a Hub id `org/name[@revision]`; None: the plan's source.

    Returns:
        With the planned shards; where some are missing, `identify` names the differences.

    Raises:
        UsageError: Nothing given, and the plan has no source.
        BayplanError: No such folder, and no Hub id either.
        BayplanError: The Hub does not give it.
        CheckpointError, JsonError: As `open_shards`.
    """
    assert plan.model.checkpoint is not None, "only bound plans have a checkpoint"
    names = [shard.file for shard in plan.model.checkpoint.shards]
    for name in names:
        check_shard_name(name, where="plan")
    given = checkpoint if checkpoint is not None else plan.model.source
    if given is None:
        raise UsageError(
            "no checkpoint given, and the plan was made from a local folder",
            where="--checkpoint",
            needed="a folder or a Hub id",
        )
    folder = Path(given)
    if not folder.exists():
        hub_id = parse_hub_id(str(given))
        if hub_id is None:
            raise BayplanError(
                "no such checkpoint", where=str(given), needed="a folder, or a Hub id such as org/name"
            )
        revision = hub_id.revision or (plan.model.revision if checkpoint is None else None)
        folder = _download(hub_id, revision, names, with_code=plan.model.trust_remote_code)
    return open_shards(folder, names)


def _download(hub_id: HubId, revision: str | None, names: list[str], *, with_code: bool) -> Path:
    """Download the small files and the named shards; return their folder in the snapshot."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    repo = hub_id.repo
    prefix = "" if hub_id.folder is None else f"{hub_id.folder}/"
    where = f"{repo}/{prefix}".rstrip("/")
    patterns = [f"{prefix}{name}" for name in (*names, *_SMALL_FILES, *(["*.py"] if with_code else []))]
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns)) / prefix
    except (HfHubHTTPError, OSError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines()
        raise BayplanError(
            "the Hub does not give this checkpoint",
            where=where if revision is None else f"{where}@{revision}",
            got=f"{type(error).__name__}: {lines[0] if lines else ''}",
            hint="check the name and your network; a gated model needs `hf auth login`",
        ) from error
