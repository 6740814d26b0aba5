from __future__ import annotations

import pytest

from bayplan.schemas.hub_id import HubId, parse_hub_id


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("org/name", "org/name", None),
        ("Org-1/na.me_2", "Org-1/na.me_2", None),
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
    ],
)
def test_what_is_no_name_of_the_hub(text: str) -> None:
    assert parse_hub_id(text) is None
