"""Ways in which a checkpoint is damaged or changed, each done to a copy of a folder and saying what it did.

Works on the bytes of safetensors files, so that it can write what no library would.
"""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

INDEX = "model.safetensors.index.json"
_PREFIX_BYTES = 8
_WIDTH_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "U8": 1, "I8": 1}

Header = dict[str, dict[str, Any]]


class Found(NamedTuple):
    """A tensor and the shard that holds it."""

    shard: Path
    fqn: str
    entry: dict[str, Any]


def copy_of(folder: Path, target: Path) -> Path:
    """Copy a checkpoint to `target`, links followed, and return `target`."""
    shutil.copytree(folder, target)
    return target


def truncate_shard(folder: Path, *, num_bytes: int = 1) -> Path:
    """Cut the last `num_bytes` off the last shard, and return it."""
    shard = _shards(folder)[-1]
    data = shard.read_bytes()
    _put(shard, data[:-num_bytes])
    return shard


def flip_header_byte(folder: Path) -> Path:
    """Change one letter of the first tensor's name in the first shard, and return the shard.

    The header stays valid JSON of the same length, and no tensor's bytes change.
    """
    shard = _shards(folder)[0]
    fqn = min(name for name in _read(shard)[0] if name != "__metadata__")
    data = bytearray(shard.read_bytes())
    at = data.index(f'"{fqn}"'.encode()) + len(fqn)
    data[at] = ord("x") if data[at] != ord("x") else ord("y")
    _put(shard, data)
    return shard


def flip_data_byte(folder: Path) -> Path:
    """Change the last byte of the last shard, which no header shows, and return the shard."""
    shard = _shards(folder)[-1]
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    _put(shard, data)
    return shard


def lengthen_header(folder: Path) -> Path:
    """Say in the first shard that its header is longer than the file, and return the shard."""
    shard = _shards(folder)[0]
    data = shard.read_bytes()
    _put(shard, len(data).to_bytes(_PREFIX_BYTES, "little") + data[_PREFIX_BYTES:])
    return shard


def drop_tensor(folder: Path, fqn: str) -> Path:
    """Remove a tensor, from the index too, and return the shard that held it."""
    shard = find(folder, fqn).shard
    header, data = _read(shard)
    begin, end = header.pop(fqn)["data_offsets"]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= end:
            entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
    _write(shard, header, data[:begin] + data[end:])
    _edit_index(folder, fqn, None)
    return shard


def add_tensor(folder: Path, fqn: str, *, dtype: str = "F32", shape: Sequence[int] = (2, 3)) -> Path:
    """Add a tensor of zeros to the last shard, and to the index, and return the shard."""
    shard = _shards(folder)[-1]
    header, data = _read(shard)
    num_bytes = math.prod(shape) * _WIDTH_BYTES[dtype]
    offsets = [len(data), len(data) + num_bytes]
    header[fqn] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
    _write(shard, header, data + bytes(num_bytes))
    _edit_index(folder, fqn, shard.name)
    return shard


def reshape_tensor(folder: Path, fqn: str, shape: Sequence[int]) -> Path:
    """Give a tensor another shape of as many elements, and return its shard."""
    found = find(folder, fqn)
    assert math.prod(shape) == math.prod(found.entry["shape"])
    assert list(shape) != found.entry["shape"]
    return _edit_entry(found, shape=list(shape))


def retype_tensor(folder: Path, fqn: str, dtype: str) -> Path:
    """Call a tensor's bytes another data type of the same width (`I32` for `F32`), and return its shard."""
    found = find(folder, fqn)
    assert _WIDTH_BYTES[dtype] == _WIDTH_BYTES[found.entry["dtype"]]
    assert dtype != found.entry["dtype"]
    return _edit_entry(found, dtype=dtype)


def lie_about_shape(folder: Path, fqn: str) -> Path:
    """Make a tensor's first dimension one longer than its bytes allow, and return its shard."""
    found = find(folder, fqn)
    first, *others = found.entry["shape"]
    return _edit_entry(found, shape=[first + 1, *others])


def point_index_outside(folder: Path, fqn: str, file: str = "../outside.safetensors") -> Path:
    """Let the index say that a tensor is in `file`, and return the index."""
    return _edit_index(folder, fqn, file)


def remove_shard(folder: Path) -> Path:
    """Delete the last shard, and return where it was."""
    shard = _shards(folder)[-1]
    shard.unlink()
    return shard


def find(folder: Path, fqn: str) -> Found:
    """Return tensor `fqn` of the checkpoint."""
    for shard in _shards(folder):
        header, _ = _read(shard)
        if fqn in header:
            return Found(shard, fqn, header[fqn])
    raise KeyError(fqn)


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _read(shard: Path) -> tuple[Header, bytes]:
    data = shard.read_bytes()
    end = _PREFIX_BYTES + int.from_bytes(data[:_PREFIX_BYTES], "little")
    header: Header = json.loads(data[_PREFIX_BYTES:end])
    return header, data[end:]


def _write(shard: Path, header: Header, data: bytes) -> None:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (
        -len(text) % _PREFIX_BYTES
    )  # tensors start at a multiple of 8, as the library writes them
    _put(shard, len(text).to_bytes(_PREFIX_BYTES, "little") + text + data)


def _put(shard: Path, data: bytes | bytearray) -> None:
    """Give `shard` other contents as a new file: somebody may have mapped the old one."""
    shard.unlink()
    shard.write_bytes(data)


def _edit_entry(found: Found, **changes: object) -> Path:
    header, data = _read(found.shard)
    header[found.fqn].update(changes)
    _write(found.shard, header, data)
    return found.shard


def _edit_index(folder: Path, fqn: str, file: str | None) -> Path:
    """Let the index, if there is one, say that `fqn` is in `file`; None: that it is nowhere."""
    path = folder / INDEX
    if path.exists():
        index = json.loads(path.read_bytes())
        index["weight_map"].pop(fqn, None)
        if file is not None:
            index["weight_map"][fqn] = file
        path.write_text(json.dumps(index, indent=2) + "\n")
    return path
