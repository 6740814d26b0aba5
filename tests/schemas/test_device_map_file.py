"""A device map in a file: module paths with numbers or names of devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayplan.schemas.codec import read_device_map
from bayplan.schemas.errors import BayplanError, PlanFormatError

HINT = 'hint: write modules with numbers or names of devices, such as {"model": 0, "lm_head": "cpu"}'


def written(folder: Path, text: str) -> Path:
    path = folder / "map.json"
    path.write_text(text)
    return path


def test_what_json_dumps_makes_of_one(tmp_path: Path) -> None:
    text = '{"model.embed_tokens": 0, "model.layers": "cuda:1", "lm_head": "disk", "": "cpu"}'
    assert read_device_map(written(tmp_path, text)) == {
        "model.embed_tokens": 0,
        "model.layers": "cuda:1",
        "lm_head": "disk",
        "": "cpu",
    }


def test_no_devices(tmp_path: Path) -> None:
    file = written(tmp_path, '{"a": true, "b.c": [0], "d": null, "e": 1.5, "f": 0}')
    with pytest.raises(PlanFormatError) as caught:
        read_device_map(file)
    assert str(caught.value) == (
        f"{file}: not a valid device map: 4 problems\n"
        "  $.a: Expected `int | str`, got `bool`\n"
        '  $["b.c"]: Expected `int | str`, got `array`\n'
        "  $.d: Expected `int | str`, got `null`\n"
        "  $.e: Expected `int | str`, got `float`\n"
        f"{HINT}"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "holds no entry"),
        ('[["a", 0]]', "not a JSON object"),
        ('{"a": 0, "a": 1}', 'an object has the same key twice: got "a"'),
    ],
)
def test_no_map(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(PlanFormatError) as caught:
        read_device_map(written(tmp_path, text))
    assert caught.value.problems == (("$", problem),)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    with pytest.raises(BayplanError) as caught:
        read_device_map(path)
    assert str(caught.value) == f"{path}: cannot read the device map: got No such file or directory"
