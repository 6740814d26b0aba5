from __future__ import annotations

import json
from pathlib import Path

import pytest

from bayplan.skeleton.config import load_config
from bayplan.skeleton.config_file import ModelError, code_files


def write_config(folder: Path, **values: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(values))
    return file


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'config.json'}: cannot read the model's config: got No such file or directory, needed a"
        " folder with config.json, or a config file"
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 200_000, "is nested too deeply: needed at most 100 levels"),
        (b'{"a":' * 101 + b"}" * 101, "is nested too deeply: needed at most 100 levels"),
        (b" " * (2**24 + 1), "is too large: needed at most 16777216 bytes"),
        (b'{"a": ', "is not JSON: got JSONDecodeError: Expecting value: line 1 column 7 (char 6)"),
        (b"\xff", "is not JSON: got UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0:"),
        (b"[]", "is not a JSON object: got list"),
        (
            b"\xef\xbb\xbf{}",
            "is not JSON: got JSONDecodeError: Unexpected UTF-8 BOM (decode using utf-8-sig): ",
        ),
        (b'{"n": 1, "n": 2}', 'gives one key two values: got "n", needed one'),
        (b'{"n": 1, "sub": {"m": 1, "m": [1]}}', 'gives one key two values: got "m", needed one'),
        (b"{}", 'is empty: needed a string "model_type"'),
    ],
)
def test_no_json_object(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value).startswith(f"{file}: the model's config {message}")


def test_a_key_that_says_the_same_twice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "vocab_size": 9, "vocab_size": 9}')
    assert load_config(tmp_path).vocab_size == 9


@pytest.mark.parametrize(
    ("values", "got", "needed"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers -1", "1 to 10000"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0", "1 to 10000"),
        ({"n_layer": 10**9}, "n_layer 1000000000", "1 to 10000"),
        ({"decoder_layers": -3}, "decoder_layers -3", "0 to 10000"),
        ({"text_config": {"num_hidden_layers": 0}}, "text_config.num_hidden_layers 0", "1 to 10000"),
        ({"vision_config": {"depth": 2**40}}, "vision_config.depth 1099511627776", "0 to 10000"),
        ({"vision_config": {"num_layers": -1}}, "vision_config.num_layers -1", "0 to 10000"),
    ],
)
def test_impossible_layers(tmp_path: Path, values: dict[str, object], got: str, needed: str) -> None:
    file = write_config(tmp_path, model_type="llama", **values)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{file}: the config has an impossible number of layers: got {got}, needed {needed}"
    )


def test_impossible_labels(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="llama", num_labels=2**31)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{file}: the config has an impossible number of labels: got num_labels 2147483648, "
        "needed at most 1000000"
    )


def test_heads_that_share_unevenly(tmp_path: Path) -> None:
    file = write_config(tmp_path, model_type="llama", num_attention_heads=4, num_key_value_heads=3)
    with pytest.raises(ModelError) as caught:
        load_config(tmp_path)
    assert str(caught.value) == (
        f"{file}: the config's attention heads cannot share its key-value heads evenly: "
        "got num_attention_heads 4, num_key_value_heads 3, needed a multiple"
    )


@pytest.mark.parametrize(
    ("auto_map", "files"),
    [
        (None, ()),
        ({"AutoConfig": "home.HomeConfig", "AutoModel": "home.HomeModel"}, ("home.py",)),
        ({"AutoTokenizer": ["tokens.Slow", None], "AutoModel": "a.b.C"}, ("a/b.py", "tokens.py")),
        ({"AutoModel": "org/name--models.Model"}, ("models.py of org/name",)),
        ({"AutoModel": "nothing", "AutoConfig": 3}, ()),
        ({"AutoModel": "\x1b[0m.Model"}, ("\\u001b[0m.py",)),
    ],
)
def test_files_of_code(auto_map: object, files: tuple[str, ...]) -> None:
    assert code_files(auto_map) == files
