from __future__ import annotations

import re

import pytest
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from hypothesis import given
from hypothesis import strategies as st

from bayplan.schemas.hub_id import HubId, parse_hub_id


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("org/name", "org/name", None),
        ("Org-1/na.me_2", "Org-1/na.me_2", None),
        (f"{'o' * 96}/{'n' * 96}", f"{'o' * 96}/{'n' * 96}", None),
        ("org/name@main", "org/name", "main"),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1"),
        ("org/name@v1.0-rc", "org/name", "v1.0-rc"),
    ],
)
def test_names_of_the_hub(text: str, repo: str, revision: str | None) -> None:
    assert parse_hub_id(text) == HubId(repo=repo, revision=revision)


def test_a_folder_of_a_repository() -> None:
    assert parse_hub_id("org/name/unet") == HubId(repo="org/name", folder="unet", revision=None)
    assert parse_hub_id("a/b/c/d.e@v1/x") == HubId(repo="a/b", folder="c/d.e", revision="v1/x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "a/b/",
        "a/b//c",
        "a/b/../c",
        "./name",
        "../name",
        "/org/name",
        "org/name@",
        "org/name@/main",
        "org/name@-x",
        "org/name\n",
        "org/na me",
        "org/n\u00e4me",
        "package.module:factory",
        # Of the form, but the Hub has no such names and its client raises for them.
        "org/name--x",
        "org/na..me",
        "org/name.git",
        "org/name.",
        "org-/name/folder",
        f"org/{'x' * 97}",
        f"{'x' * 97}/name@main",
    ],
)
def test_what_is_no_name_of_the_hub(text: str) -> None:
    assert parse_hub_id(text) is None


NAMES = re.compile(r"[A-Za-z0-9][a-z_.-]{0,9}/[A-Za-z0-9][a-z_.-]{0,9}(\.git)?")


@given(st.from_regex(NAMES, fullmatch=True))
def test_the_client_of_the_hub_takes_every_name(text: str) -> None:
    found = parse_hub_id(text)
    try:
        validate_repo_id(text)
    except HFValidationError:
        assert found is None
    else:
        assert found is not None
