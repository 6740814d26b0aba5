"""What can go wrong while a plan is carried out; every class keeps its facts in fields.

Refusals of a plan as a whole are `bayplan.schemas.errors.PlanRefused`.
"""

from __future__ import annotations

from bayplan.schemas.errors import BayplanError
from bayplan.schemas.sizes import format_size


class MemoryBudgetError(BayplanError):
    """The plan fits this machine, but its memory is not free now.

    Attributes:
        device: Id in the plan.
        needed_bytes: Upper bound of the ledger without `runtime`.
        available_bytes: What a process can get now.
    """

    def __init__(self, device: str, *, needed_bytes: int, available_bytes: int) -> None:
        """Make the text from the facts."""
        super().__init__(
            "not enough free memory for the plan",
            where=device,
            got=format_size(available_bytes),
            needed=format_size(needed_bytes),
            hint="stop other processes, or plan again with a smaller --max-memory",
        )
        self.device, self.needed_bytes, self.available_bytes = device, needed_bytes, available_bytes


class PlanContradictionError(BayplanError):
    """The plan and the model that it names do not fit together, though both are what they say they are.

    Attributes:
        problems: At least one sentence.
    """

    def __init__(self, problems: tuple[str, ...]) -> None:
        """List the problems one a line."""
        super().__init__(
            "the plan contradicts the model:" + "".join(f"\n  {problem}" for problem in problems),
            hint="plan again with this version of bayplan",
        )
        self.problems = problems


class TensorMissingError(BayplanError):
    """A tensor of the model has no counterpart in the checkpoint.

    Attributes:
        fqn: Name in the model.
        sources: Names that were looked for.
    """

    def __init__(self, fqn: str, sources: tuple[str, ...], *, folder: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "tensor missing from the checkpoint",
            where=folder,
            got=f"no {' or '.join(sources)}",
            needed=f"the bytes of {fqn}",
            hint="the checkpoint is of another model, or incomplete: plan again from this folder",
        )
        self.fqn, self.sources = fqn, sources


class TensorMismatchError(BayplanError):
    """A tensor of the checkpoint has another shape, or a data type that cannot be cast.

    Attributes:
        fqn: Name in the model.
        source: Name in the checkpoint.
        file: Shard that holds it.
    """

    def __init__(self, fqn: str, source: str, file: str, *, got: str, needed: str) -> None:
        """Make the text from the facts."""
        super().__init__(f"tensor {source} does not fit {fqn}", where=file, got=got, needed=needed)
        self.fqn, self.source, self.file = fqn, source, file


class TiedTensorsDifferError(BayplanError):
    """The model ties two names to one storage, but the checkpoint holds different values for them.

    Attributes:
        fqn: Name whose bytes are bound.
        other: Name whose bytes differ.
    """

    def __init__(self, fqn: str, other: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "tied weights differ in the checkpoint",
            where=fqn,
            got=f"other values for {other}",
            needed="equal bytes, since the model has one storage for both",
            hint="set tie_word_embeddings to false in config.json, or save the checkpoint again",
        )
        self.fqn, self.other = fqn, other


class TruncatedShardError(BayplanError):
    """A shard ends before the bytes that its header promised.

    Attributes:
        file: Path of the shard.
        offset: Where the request starts.
        needed_bytes: Bytes asked for.
        got_bytes: Bytes that were there.
    """

    def __init__(self, file: str, *, offset: int, needed_bytes: int, got_bytes: int) -> None:
        """Make the text from the facts."""
        super().__init__(
            f"shard ends too early at offset {offset}",
            where=file,
            got=f"{got_bytes} bytes",
            needed=f"{needed_bytes} bytes",
            hint="the file is cut short: copy or download it again",
        )
        self.file, self.offset, self.needed_bytes, self.got_bytes = file, offset, needed_bytes, got_bytes


class ShardReadError(BayplanError):
    """The system could not read a shard.

    Attributes:
        file: Path of the shard.
        offset: Where the request starts; None: the file could not be opened.
    """

    def __init__(self, file: str, *, offset: int | None, reason: str) -> None:
        """Make the text from the facts."""
        what = "shard cannot be opened" if offset is None else f"shard cannot be read at offset {offset}"
        super().__init__(what, where=file, got=reason)
        self.file, self.offset = file, offset


class ShardChangedError(BayplanError):
    """A shard is not the file any more that was checked before loading.

    Attributes:
        file: Path of the shard.
    """

    def __init__(self, file: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "shard changed after it was checked",
            where=file,
            needed="the file that preflight saw (same length, times and inode)",
            hint="load the model again; do not write to a checkpoint that is in use",
        )
        self.file = file


class StreamError(BayplanError):
    """A streamed block could not be brought in; the cause is chained.

    Attributes:
        block: Id of the block.
        file: Path of the shard concerned; empty where the cause is not about a file.
        offset: Where in the file; None where it is not known.
    """

    def __init__(self, block: str, *, file: str, offset: int | None, reason: str) -> None:
        """Make the text from the facts."""
        place = f" from {file}" if file else ""
        place += f" at offset {offset}" if offset is not None else ""
        super().__init__(f"block could not be streamed{place}", where=block, got=reason)
        self.block, self.file, self.offset = block, file, offset


class ConcurrentUseError(BayplanError):
    """Two threads run a model whose blocks share slots.

    Attributes:
        block: Block that the second thread wanted.
        held: Block that the first thread is in.
    """

    def __init__(self, block: str, *, held: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "a streamed model was called from two threads at once",
            where=block,
            got=f"another thread is inside {held}",
            needed="one forward at a time",
            hint="put a lock around the model, or load it once per thread",
        )
        self.block, self.held = block, held


class NestedBlocksError(BayplanError):
    """A streamed block called another one that has the same slot.

    Attributes:
        block: Block that was called.
        held: Block that is still running.
    """

    def __init__(self, block: str, *, held: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "a streamed block was called from inside another with the same slot",
            where=block,
            got=f"{held} still running",
            needed="one after the other",
            hint=f"plan again with --pin {block}=cpu,resident",
        )
        self.block, self.held = block, held


class ReleasedError(BayplanError):
    """A model was used after `release`."""

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__("the model was released", hint="load it again with load_model")


class ForkedProcessError(BayplanError):
    """A streamed model was used in a forked child, where its reader thread does not exist.

    Attributes:
        block: Block that was called.
    """

    def __init__(self, block: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "a streamed model does not survive fork",
            where=block,
            got="a forked child process",
            needed="the process that loaded the model",
            hint="load the model in the child, or use the start method `spawn`",
        )
        self.block = block


class GradientModeError(BayplanError):
    """A gradient would be computed through weights whose slot is refilled before the backward pass.

    Attributes:
        block: Id of the block.
    """

    def __init__(self, block: str, *, got: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            "gradients through a streamed block would be wrong",
            where=block,
            got=got,
            needed="no gradient",
            hint="run under torch.inference_mode(), or plan with more memory so that nothing streams",
        )
        self.block = block


class ContextExceededError(BayplanError):
    """A run goes beyond the workload for which the plan reserves memory.

    Attributes:
        noun: What is exceeded, such as `positions`.
        got: Found.
        planned: Allowed.
    """

    def __init__(self, noun: str, *, got: int, planned: int, option: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            f"more {noun} than planned",
            got=str(got),
            needed=f"at most {planned}",
            hint=f"plan again with {option} {got}",
        )
        self.noun, self.planned = noun, planned


class KeptOutputsError(BayplanError):
    """A forward would hand back more than the device's budget leaves for activations.

    Attributes:
        kept_bytes: What the outputs take, by noun.
        room_bytes: Budget less everything planned but activations.
    """

    def __init__(self, kept_bytes: dict[str, int], *, room_bytes: int, remedies: tuple[str, ...]) -> None:
        """Make the text from the facts."""
        parts = ", ".join(f"{format_size(count)} of {noun}" for noun, count in kept_bytes.items())
        super().__init__(
            "the outputs of this forward take more memory than the budget leaves for activations",
            got=parts,
            needed=f"at most {format_size(room_bytes)}",
            hint=" and ".join(remedies),
        )
        self.kept_bytes, self.room_bytes = kept_bytes, room_bytes


class ThreadStartError(BayplanError):
    """The system gives no further thread.

    Attributes:
        thread: What it is for.
    """

    def __init__(self, thread: str, *, reason: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            f"the {thread} thread cannot be started",
            got=reason,
            hint="raise the limit of threads (ulimit -u, or the container's), or stop other processes",
        )
        self.thread = thread


class StreamedWeightsError(BayplanError):
    """An operation on all weights of a model of which only a part is in memory.

    Attributes:
        operation: What was tried, such as `state_dict()`.
    """

    def __init__(self, operation: str, *, block: str, hint: str) -> None:
        """Make the text from the facts."""
        super().__init__(
            f"{operation} does not work on a model with streamed blocks",
            where=block,
            got="weights that share a slot with those of other blocks",
            needed="weights that are all in memory",
            hint=hint,
        )
        self.operation = operation
