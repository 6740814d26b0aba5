"""What a caller may ask of the planner: the options of `bayplan plan`, as one struct."""

from __future__ import annotations

import msgspec

from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.hardware import Inventory
from bayplan.schemas.plan import Plan
from bayplan.schemas.types import Objective


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one planning call; the defaults are those of the command line."""

    inventory: Inventory | None = None
    """None: this machine's static capacities and the catalogue's rates; nothing is measured."""
    max_memory: tuple[str, ...] = ()
    """`DEVICE=SIZE`: budget for the whole ledger of a device but `runtime`."""
    format: str | None = None
    """Names of formats with commas between, or `auto`; None: a quantized checkpoint's own, else the data type
    that `from_pretrained` would choose."""
    format_config: FormatConfig | None = None
    """Formats of the user's own, and rules for the weights that differ."""
    batch: int = 1
    context: int | None = None
    """Positions; None: the smaller of 1024 and the model's maximum."""
    encoder_context: int | None = None
    prefill_chunk: int | None = None
    """Positions per forward; None: the whole context."""
    objective: Objective | None = None
    """None: `decode` where the model generates, else `prefill`."""
    class_name: str | None = None
    """Model class; None: by the config's `architectures`."""
    no_split: tuple[str, ...] = ()
    """Classes of indivisible modules; empty: the model's own."""
    pins: tuple[str, ...] = ()
    """`GLOB=DEVICE[,RESIDENCY][,FORMAT]`."""
    device_map: dict[str, int | str] | None = None
    """Module to device as accelerate and transformers have it; the plan is like it."""
    free: bool = False
    """Whether `device_map` is only what the plan is compared with."""
    previous: Plan | None = None
    """An earlier plan for the same blocks: of the placements that are nearly as good as the best, the one
    that moves the fewest bytes from it."""
    no_spill: bool = False
    """Infeasible rather than streaming anything."""
    hash_content: bool = False
    """Hash local shards, so that a fine-tune with the same headers is told apart."""
    variant: str | None = None
    """`fp16` reads `model.fp16.safetensors`."""
    trust_remote_code: bool = False
    checkpoint: str | None = None
    """Folder of the weights where the model is a factory."""
    library: str | None = None
    """`transformers`, `timm` or `diffusers`; None: found out."""
    use_cache: bool = True
    """Take an unchanged model's graph from the cache, and put it there."""
    time_limit_s: float | None = None
    """Seconds that the solver may take; with a limit, another run may give another plan. None: it stops after
    an amount of work."""
