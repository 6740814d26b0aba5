"""What an index without its shards says of a model: names, to be held against those of the class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayplan.schemas.errors import first_names
from bayplan.skeleton.checkpoint_names import unlisted_parameters

if TYPE_CHECKING:
    from torch import nn

    from bayplan.schemas.checkpoint_index import ShardIndex

_SHOWN_NAMES = 5


def listing_warnings(listing: ShardIndex, module: nn.Module) -> tuple[str, ...]:
    """Return that parameters of the class have no tensor in the index, if that is so.

    A class that its checkpoint does not fill is likely another than the checkpoint's.
    """
    missing = unlisted_parameters(module, listing.weight_map)
    if not missing:
        return ()
    shown = first_names(missing, _SHOWN_NAMES)
    return (
        f"{listing.file} lists no tensor for {len(missing)} parameters of {type(module).__name__}: {shown}",
    )
