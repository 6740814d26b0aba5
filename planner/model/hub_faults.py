"""What the Hub's client raises, and what each of it means to a person.

Owns the messages. Asks the Hub for nothing.
"""

from __future__ import annotations

import enum

import huggingface_hub.errors as hub_errors

from bayplan.schemas.errors import BayplanError

# The class of the HTTP library under every transport failure; which library that is changed with the client's
# version.
_HttpError: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]
CLIENT_FAULTS: tuple[type[Exception], ...] = (
    hub_errors.FileMetadataError,
    hub_errors.HfHubHTTPError,
    hub_errors.LocalEntryNotFoundError,
    hub_errors.OfflineModeIsEnabled,
    _HttpError,
)
"""What the client raises where the Hub does not answer as it should."""


class HubFault(enum.StrEnum):
    """Why the Hub does not give something, where callers act on it."""

    GATED = "gated"
    MISSING = "missing"
    UNREACHABLE = "unreachable"
    OTHER = "other"


class HubError(BayplanError):
    """The Hub does not give what was asked for.

    Attributes:
        fault: Why.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str,
        got: str = "",
        needed: str = "",
        hint: str = "",
        fault: HubFault = HubFault.OTHER,
    ) -> None:
        """Keep the fault beside the facts of `BayplanError`."""
        super().__init__(what, where=where, got=got, needed=needed, hint=hint)
        self.fault = fault


def hub_error(error: Exception, where: str) -> HubError:
    """Return what a failure of the client means to the user."""
    if isinstance(error, hub_errors.GatedRepoError):
        return HubError(
            "the Hub gives this model only to those who accepted its terms",
            where=where,
            hint="accept them on the model's page and log in with `hf auth login`",
            fault=HubFault.GATED,
        )
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return HubError("the Hub has no such revision of this model", where=where)
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        return HubError(
            "neither a local folder nor a model that the Hub shows you",
            where=where,
            hint="check the name; a private model needs `hf auth login`",
            fault=HubFault.MISSING,
        )
    if isinstance(error, hub_errors.HfHubHTTPError):
        status = error.response.status_code
        return HubError(
            "the Hub answers with an error",
            where=where,
            got=f"HTTP status {status}",
            hint=_STATUS_HINTS.get(status, "try again later"),
        )
    # The client wraps offline mode, too, where a file is not in its cache.
    cause = error.__cause__ if isinstance(error, hub_errors.LocalEntryNotFoundError) else None
    if isinstance(cause or error, hub_errors.OfflineModeIsEnabled):
        return HubError(
            "no local folder, and the Hub may not be asked",
            where=where,
            got="offline mode",
            hint="unset HF_HUB_OFFLINE, or give the path of a folder with the model",
            fault=HubFault.UNREACHABLE,
        )
    return HubError(
        "no local folder, and the Hub cannot be reached",
        where=where,
        got=type(cause or error).__name__,
        hint="check the network, or give the path of a folder with the model",
        fault=HubFault.UNREACHABLE,
    )


_STATUS_HINTS = {
    401: "log in again with `hf auth login`, or unset HF_TOKEN",
    403: "your token may lack the right to read this model",
    429: "too many requests: wait a while, or log in with `hf auth login`",
}
