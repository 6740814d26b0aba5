from __future__ import annotations

import json

import pytest

from bayplan.schemas.certificate import (
    Axis,
    Certificate,
    CertifiedInfeasible,
    Relaxation,
    encode_certificate,
    relaxation_text,
)
from bayplan.schemas.errors import ExitCode, Infeasible

GIB = 2**30


def count(axis: Axis, given: int, enough: int | None, too_little: int | None) -> Relaxation:
    return Relaxation(axis=axis, given=given, enough=enough, too_little=too_little, step=1)


def memory(subject: str, enough: int | None, *, limit: int = 24 * GIB) -> Relaxation:
    too_little = None if enough is None else enough - 1
    return Relaxation(
        axis=Axis.DEVICE_MEMORY, subject=subject, given=GIB, enough=enough, too_little=too_little, limit=limit
    )


def host(axis: Axis, enough: int | None) -> Relaxation:
    return Relaxation(axis=axis, subject="node0", given=8 * GIB, enough=enough)


@pytest.mark.parametrize(
    ("relaxation", "text"),
    [
        (count(Axis.CONTEXT, 2048, 500, 501), "--context 500 instead of 2048 (501 is too much)"),
        (count(Axis.CONTEXT, 2, 1, 2), "--context 1 instead of 2"),
        (count(Axis.CONTEXT, 2048, None, 1), "--context 1 instead of 2048"),
        (count(Axis.ENCODER_CONTEXT, 9, 3, 4), "--encoder-context 3 instead of 9 (4 is too much)"),
        (count(Axis.BATCH, 8, 2, 3), "--batch 2 instead of 8 (3 is too much)"),
        (count(Axis.PREFILL_CHUNK, 8, 7, 8), "--prefill-chunk 7 instead of 8"),
        (
            Relaxation(axis=Axis.BATCH, given=1, note="which is the least"),
            "--batch: 1, which is the least",
        ),
        (
            Relaxation(axis=Axis.FORMAT, given="bf16", enough="bf16,int8", too_little="bf16", note="so"),
            "--format bf16,int8 instead of bf16, so",
        ),
        (
            Relaxation(axis=Axis.FORMAT, given="bf16", too_little="bf16,int8,nf4"),
            "--format bf16,int8,nf4 instead of bf16",
        ),
        (
            memory("node0/gpu0", 3 * GIB // 2),
            "--max-memory node0/gpu0=1610612736 (1.50 GiB) instead of 1.00 GiB",
        ),
        (
            memory("node0/gpu0", 25 * GIB),
            "26843545600 bytes (25.00 GiB) to use on node0/gpu0 instead of 1.00 GiB",
        ),
        (memory("node0/gpu0", None), "more memory on node0/gpu0"),
        (
            host(Axis.HOST_MEMORY, 9 * GIB),
            "9663676416 bytes (9.00 GiB) of host memory on node0 instead of 8.00 GiB",
        ),
        (host(Axis.HOST_MEMORY, None), "more host memory on node0 instead of 8.00 GiB"),
        (
            host(Axis.PINNED_MEMORY, 9 * GIB),
            "9663676416 bytes (9.00 GiB) of pinned memory on node0 instead of 8.00 GiB",
        ),
        (Relaxation(axis=Axis.DISK, subject="node1", enough="a disk"), "a disk on node1"),
        (
            Relaxation(axis=Axis.STREAMING, given="forbidden", enough="allowed"),
            "streaming: without --no-spill",
        ),
    ],
)
def test_a_change_in_words(relaxation: Relaxation, text: str) -> None:
    assert relaxation_text(relaxation) == text


CERTIFICATE = Certificate(
    what="no placement fits the budgets",
    where="node0/gpu0",
    got="1.00 GiB on node0/gpu0",
    needed="",
    relaxations=(
        count(Axis.CONTEXT, 2048, 500, 501),
        count(Axis.BATCH, 2, None, 1),
        memory("node0/gpu0", 3 * GIB // 2),
        memory("node0/gpu1", 3 * GIB // 2),
        memory("node0/gpu2", 30 * GIB),
        *(memory(f"node0/gpu{number}", None) for number in range(3, 8)),
    ),
)


def test_the_error_has_a_line_for_each_change_and_one_for_devices_that_are_alike() -> None:
    error = CertifiedInfeasible(CERTIFICATE, hint="combine them")
    assert isinstance(error, Infeasible)
    assert error.exit_code is ExitCode.INFEASIBLE
    assert error.certificate == CERTIFICATE
    assert str(error) == (
        "node0/gpu0: no placement fits the budgets: got 1.00 GiB on node0/gpu0\n"
        "  any one of these is enough, and one step less is not:\n"
        "    --context 500 instead of 2048 (501 is too much)\n"
        "    --max-memory DEVICE=1610612736 for one of node0/gpu0, node0/gpu1 (1.50 GiB) "
        "instead of 1.00 GiB\n"
        "    32212254720 bytes (30.00 GiB) to use on node0/gpu2 instead of 1.00 GiB\n"
        "  not enough by itself:\n"
        "    --batch 1 instead of 2\n"
        "    more memory on one of node0/gpu3, node0/gpu4, node0/gpu5 and 2 more\n"
        "hint: combine them"
    )


def test_without_changes_and_hint_there_are_the_facts() -> None:
    bare = Certificate(what="nothing fits", where="", got="", needed="more", relaxations=())
    assert str(CertifiedInfeasible(bare)) == "nothing fits: needed more"


def test_only_what_is_not_enough() -> None:
    only = Certificate(
        what="nothing fits", where="", got="", needed="", relaxations=(count(Axis.BATCH, 2, None, 1),)
    )
    assert str(CertifiedInfeasible(only)) == (
        "nothing fits\n  not enough by itself:\n    --batch 1 instead of 2"
    )


def test_the_json_has_every_axis() -> None:
    tree = json.loads(encode_certificate(CERTIFICATE))
    assert list(tree) == ["what", "where", "got", "needed", "relaxations"]
    assert tree["relaxations"][0] == {
        "axis": "context",
        "subject": "",
        "given": 2048,
        "enough": 500,
        "too_little": 501,
        "step": 1,
        "limit": None,
        "note": "",
    }
    assert [one["subject"] for one in tree["relaxations"][2:5]] == ["node0/gpu0", "node0/gpu1", "node0/gpu2"]
    assert encode_certificate(CERTIFICATE).endswith(b"}\n")
