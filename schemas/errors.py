"""Errors that a person meets: what happened, where, what was got, what was needed, and a hint.

Owns the base class, the refusal kinds of a plan and the process exit codes that go with them. Knows nothing
of JSON, torch or the command line: every class keeps its facts in fields and makes its text from them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


def first_names(names: Sequence[str], at_most: int) -> str:
    """Return the first of several names for a message, and `...` where there are more."""
    return ", ".join(names[:at_most]) + (", ..." if len(names) > at_most else "")


def first_and_more(names: Sequence[str], at_most: int) -> str:
    """Return the first of several names for a message, and how many there are besides."""
    more = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {more} more" if more > 0 else "")


class ExitCode(enum.IntEnum):
    """Process exit codes, a stable part of the command line's contract."""

    DONE = 0
    ERROR = 1
    DIFFERENCES = 2
    INFEASIBLE = 3
    REFUSED = 4
    USAGE = 64


class BayplanError(Exception):
    """Base of everything that bayplan raises for a user's or an input's fault.

    Attributes:
        what: One clause that says what is wrong.
        where: File, JSON path, tensor or option concerned; empty where `what` already names it.
        got: The value found, if that helps.
        needed: The value or form that would have been right.
        hint: One thing to do about it; printed on a line of its own.
        exit_code: What the command line exits with.
    """

    exit_code: ExitCode = ExitCode.ERROR

    def __init__(
        self, what: str, *, where: str = "", got: str = "", needed: str = "", hint: str = ""
    ) -> None:
        """Keep the facts; the text is made from them by `__str__`."""
        super().__init__(what)
        self.what = what
        self.where = where
        self.got = got
        self.needed = needed
        self.hint = hint

    def __str__(self) -> str:
        """Return `where: what: got ..., needed ...` and the hint on its own line."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        facts = [f"{label} {value}" for label, value in (("got", self.got), ("needed", self.needed)) if value]
        if facts:
            text += f": {', '.join(facts)}"
        if self.hint:
            text += f"\nhint: {self.hint}"
        return text


class UsageError(BayplanError):
    """An option or argument of the command line or of a public function is malformed."""

    exit_code = ExitCode.USAGE


class RefusalKind(enum.StrEnum):
    """Why a well-formed plan is not carried out. Each kind has its own remedy, so they are never merged."""

    FOREIGN = "foreign"
    """The plan is for another model or another machine."""
    STALE = "stale"
    """The same model, but its files have changed since the plan was made."""
    EDITED = "edited"
    """The digest does not match: the plan was changed by hand."""
    UNSUPPORTED = "unsupported"
    """Newer format or semantics, or a feature that this version does not run yet."""
    UNBOUND = "unbound"
    """Planned from a config alone: no identity of the weights, hence nothing to check them against."""


class PlanRefused(BayplanError):
    """A plan that is well formed but must not be carried out here.

    Attributes:
        kind: The kind of refusal; also first word of the message.
    """

    exit_code = ExitCode.REFUSED

    def __init__(
        self,
        kind: RefusalKind,
        what: str,
        *,
        where: str = "",
        got: str = "",
        needed: str = "",
        hint: str = "",
    ) -> None:
        """Keep the kind beside the facts of `BayplanError`."""
        super().__init__(
            f"plan refused ({kind.value}): {what}", where=where, got=got, needed=needed, hint=hint
        )
        self.kind = kind


class OtherVersion(PlanRefused):
    """A file of another major format version: nothing in it may be believed but who wrote it.

    Attributes:
        identity: `(member, text)` of those that say so, as they stand in the file.
    """

    def __init__(
        self, noun: str, *, where: str, got: str, needed: str, identity: tuple[tuple[str, str], ...]
    ) -> None:
        """Keep the members beside the facts of a refusal."""
        super().__init__(
            RefusalKind.UNSUPPORTED,
            f"{noun} of another major format version",
            where=where,
            got=got,
            needed=needed,
            hint="use the version of bayplan that wrote it, or plan again with this one",
        )
        self.identity = identity


class PlanFormatError(BayplanError):
    """A file that is no valid plan, inventory or report; carries every problem found, each with its path.

    Attributes:
        problems: At least one `(path, text)`; paths look like `$.blocks[3].device`.
    """

    def __init__(
        self, where: str, noun: str, problems: tuple[tuple[str, str], ...], *, hint: str = ""
    ) -> None:
        """Keep all problems; the message lists one a line."""
        count = len(problems)
        super().__init__(
            f"not a valid {noun}: {count} problem{'s' if count != 1 else ''}", where=where, hint=hint
        )
        self.problems = problems

    def __str__(self) -> str:
        """Return the summary line, one line per problem, and the hint."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        for path, problem in self.problems:
            text += f"\n  {path}: {problem}"
        if self.hint:
            text += f"\nhint: {self.hint}"
        return text


class Infeasible(BayplanError):
    """No placement satisfies the constraints: an answer, not a failure of the program."""

    exit_code = ExitCode.INFEASIBLE
