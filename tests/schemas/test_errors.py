from __future__ import annotations

import pytest

from bayplan.schemas.errors import (
    BayplanError,
    ExitCode,
    Infeasible,
    PlanFormatError,
    PlanRefused,
    RefusalKind,
    UsageError,
    first_and_more,
    first_names,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (BayplanError("no such device"), "no such device"),
        (BayplanError("no such device", where="--pin"), "--pin: no such device"),
        (BayplanError("bad size", got="'ten'"), "bad size: got 'ten'"),
        (BayplanError("bad size", needed="20GiB"), "bad size: needed 20GiB"),
        (BayplanError("bad size", hint="write 20GiB"), "bad size\nhint: write 20GiB"),
        (
            UsageError("bad size", where="--max-memory", got="'ten'", needed="20GiB", hint="see --help"),
            "--max-memory: bad size: got 'ten', needed 20GiB\nhint: see --help",
        ),
        (
            PlanRefused(
                RefusalKind.STALE, "a shard changed", where="p.json", got="9 bytes", needed="8", hint="again"
            ),
            "p.json: plan refused (stale): a shard changed: got 9 bytes, needed 8\nhint: again",
        ),
        (
            PlanFormatError("p.json", "plan", (("$.a", "is odd"),)),
            "p.json: not a valid plan: 1 problem\n  $.a: is odd",
        ),
        (
            PlanFormatError("", "report", (("$.a", "is odd"), ("$.b[0]", "is even")), hint="write again"),
            "not a valid report: 2 problems\n  $.a: is odd\n  $.b[0]: is even\nhint: write again",
        ),
    ],
)
def test_message(error: BayplanError, text: str) -> None:
    assert str(error) == text


def test_the_facts_stay_in_fields() -> None:
    error = PlanRefused(RefusalKind.FOREIGN, "other model", where="w", got="g", needed="n", hint="h")
    assert (error.kind, error.where, error.got, error.needed, error.hint) == ("foreign", "w", "g", "n", "h")
    assert error.what == "plan refused (foreign): other model"
    problems = (("$.a", "is odd"),)
    assert PlanFormatError("p.json", "plan", problems).problems == problems


def test_every_refusal_kind_has_its_own_message() -> None:
    texts = {str(PlanRefused(kind, "why")) for kind in RefusalKind}
    assert texts == {
        f"plan refused ({kind}): why" for kind in ("foreign", "stale", "edited", "unsupported", "unbound")
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BayplanError("x"), 1),
        (PlanFormatError("p.json", "plan", (("$", "x"),)), 1),
        (Infeasible("x"), 3),
        (PlanRefused(RefusalKind.EDITED, "x"), 4),
        (UsageError("x"), 64),
    ],
)
def test_exit_code(error: BayplanError, code: int) -> None:
    assert error.exit_code == code


def test_exit_codes_are_the_contract() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "DONE": 0,
        "ERROR": 1,
        "DIFFERENCES": 2,
        "INFEASIBLE": 3,
        "REFUSED": 4,
        "USAGE": 64,
    }


@pytest.mark.parametrize(
    ("names", "first", "counted"),
    [
        ([], "", ""),
        (["a"], "a", "a"),
        (["a", "b"], "a, b", "a, b"),
        (["a", "b", "c", "d"], "a, b, ...", "a, b and 2 more"),
    ],
)
def test_names_in_a_message(names: list[str], first: str, counted: str) -> None:
    assert (first_names(names, 2), first_and_more(names, 2)) == (first, counted)
