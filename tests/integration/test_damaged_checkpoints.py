"""A checkpoint that is damaged, or changed since it was planned for: what is wrong, and in which file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import corruptions
import pytest
from command_line import Cli, Done, plan_fails

from bayplan.schemas.sizes import format_size

NORM = "model.norm.weight"
PROMPT = ("--prompt", "w5 w6 w7")
FIRST, LAST = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def planned(llama: Path, machine: Path, tmp_path: Path, cli: Cli) -> Path:
    """A plan made while the checkpoint was whole."""
    plan = tmp_path / "plan.json"
    assert cli("plan", llama, "-i", machine, "-o", plan).code == 0
    return plan


@pytest.fixture
def damaged(llama: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return corruptions.copy_of(llama, tmp_path / "weights")


def shard_missing(folder: Path) -> str:
    corruptions.remove_shard(folder)
    return (
        f'{folder}/{corruptions.INDEX}: a shard is missing: got no file "{LAST}" in {folder}, '
        "needed every shard that the index names\nhint: copy or download the checkpoint again"
    )


def shard_truncated(folder: Path) -> str:
    corruptions.truncate_shard(folder)
    return (
        f'{folder}/{LAST}: tensor "{NORM}": ends past the end of the file: got 82559 bytes of data, '
        "needed at least 82560\nhint: the file is cut short: copy or download it again"
    )


def shard_empty(folder: Path) -> str:
    corruptions.truncate_shard(folder, num_bytes=10**6)
    return (
        f"{folder}/{LAST}: not a safetensors file: too short: got 0 bytes, needed at least 8\n"
        "hint: the file is cut short: copy or download it again"
    )


def header_past_end(folder: Path) -> str:
    num_bytes = corruptions.lengthen_header(folder).stat().st_size
    return (
        f"{folder}/{FIRST}: truncated inside its header: got {num_bytes} bytes, "
        f"needed at least {num_bytes + 8}\nhint: the file is cut short: copy or download it again"
    )


def header_lies(folder: Path) -> str:
    corruptions.lie_about_shape(folder, NORM)
    return (
        f'{folder}/{LAST}: tensor "{NORM}": data_offsets do not match dtype and shape: '
        "got 128 bytes, needed 132 for F32 [33]"
    )


def index_leads_outside(folder: Path) -> str:
    corruptions.point_index_outside(folder, NORM)
    return (
        f"{folder}/{corruptions.INDEX}: names a shard that may not be opened: "
        'with an empty part, "." or "..": got "../outside.safetensors", '
        "needed a safetensors file in the index's folder\n"
        "hint: do not use this checkpoint: an index has no reason to name other files"
    )


def index_and_shard_disagree(folder: Path) -> str:
    corruptions.flip_header_byte(folder)
    return (
        f"{folder}/{corruptions.INDEX}: places tensors in shards that do not hold them: "
        f'got 1: "model.embed_tokens.weight" in "{FIRST}", needed an index that matches its shards\n'
        "hint: index and shards are of different versions: copy or download the checkpoint again"
    )


def tensor_missing(folder: Path) -> str:
    corruptions.drop_tensor(folder, NORM)
    return (
        f"{folder}: the checkpoint lacks parameters of the model: got no tensor for 1 of them: {NORM}, "
        "needed every parameter of LlamaForCausalLM\n"
        "hint: another --class may fit, or a file is missing; what the class would compute itself, such as"
        " sinusoidal positions, must be in the checkpoint for this version"
    )


def wrong_shape(folder: Path) -> str:
    corruptions.reshape_tensor(folder, NORM, (4, 8))
    return (
        f"{folder}: tensors of the checkpoint do not fit the model: "
        f"got {NORM} is fp32 [4, 8], {NORM} needs fp32 [32]\n"
        "hint: the config belongs to another checkpoint, or a shard does"
    )


def wrong_dtype(folder: Path) -> str:
    corruptions.retype_tensor(folder, NORM, "I32")
    return (
        f"{folder}: tensors of the checkpoint do not fit the model: "
        f"got {NORM} is int32 [32], {NORM} needs fp32 [32]\n"
        "hint: the config belongs to another checkpoint, or a shard does"
    )


def config_missing(folder: Path) -> str:
    (folder / "config.json").unlink()
    return (
        f"{folder}: there is no config.json: needed the config that belongs to the weights\n"
        "hint: the folder of one model is needed, not one that holds several"
    )


@pytest.mark.parametrize(
    "damage",
    [
        shard_missing,
        shard_truncated,
        shard_empty,
        header_past_end,
        header_lies,
        index_leads_outside,
        index_and_shard_disagree,
        tensor_missing,
        wrong_shape,
        wrong_dtype,
        config_missing,
    ],
)
def test_planning_for_a_damaged_checkpoint(
    damage: Callable[[Path], str], damaged: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    message = damage(damaged)
    plan_fails(cli, 1, message, damaged, "-i", machine, output=tmp_path / "out")


@pytest.mark.parametrize("damage", [shard_empty, header_past_end])
def test_running_on_a_checkpoint_that_is_none_any_more(
    damage: Callable[[Path], str], damaged: Path, planned: Path, cli: Cli
) -> None:
    message = damage(damaged)
    assert cli("run", planned, "--checkpoint", damaged, *PROMPT) == Done(1, "", f"error: {message}\n")


def test_running_without_a_shard(damaged: Path, planned: Path, cli: Cli) -> None:
    shard_missing(damaged)
    assert cli("run", planned, "--checkpoint", damaged, *PROMPT) == Done(
        4,
        "",
        f"error: {damaged}: plan refused (stale): the checkpoint changed since the plan was made: "
        f"got {LAST} is missing, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder\n",
    )


def test_running_needs_no_index(damaged: Path, llama: Path, planned: Path, cli: Cli) -> None:
    """The plan names the shards and knows their headers, so that a bad index has nothing to say."""
    expected = cli("run", planned, "--checkpoint", llama, *PROMPT)
    index_leads_outside(damaged)
    done = cli("run", planned, "--checkpoint", damaged, *PROMPT)
    assert (done.code, done.out) == (0, expected.out)


@pytest.mark.parametrize(
    "damage",
    [shard_truncated, header_lies, index_and_shard_disagree, tensor_missing, wrong_shape, wrong_dtype],
)
def test_running_on_a_checkpoint_that_changed(
    damage: Callable[[Path], str], llama: Path, damaged: Path, planned: Path, cli: Cli
) -> None:
    """Digests are compared before a header is believed, so what is wrong inside does not matter."""
    damage(damaged)
    (changed,) = [name for name in (FIRST, LAST) if differs(llama / name, damaged / name)]
    before, after = ((folder / changed).stat().st_size for folder in (llama, damaged))
    sizes = f"{after} bytes ({format_size(after)}, planned {format_size(before)})"
    what = "another header" if before == after else sizes
    assert cli("run", planned, "--checkpoint", damaged, *PROMPT) == Done(
        4,
        "",
        f"error: {damaged}: plan refused (stale): the checkpoint changed since the plan was made: "
        f"got {changed} has {what}, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder\n",
    )


def differs(one: Path, other: Path) -> bool:
    return one.read_bytes() != other.read_bytes()


def test_a_tensor_without_a_place_is_a_warning(
    damaged: Path, machine: Path, tmp_path: Path, cli: Cli
) -> None:
    corruptions.add_tensor(damaged, "extra.weight")
    plan = tmp_path / "plan.json"
    done = cli("plan", damaged, "-i", machine, "-o", plan)
    assert (done.code, done.err) == (0, f"wrote {plan}\n")
    assert "the checkpoint holds tensors that the model does not have: extra.weight" in done.out
    done = cli("run", plan, "--checkpoint", damaged, *PROMPT)
    assert done.code == 0
    assert "1 tensor of the checkpoint not in the model" in done.err


def test_a_real_tensor_without_a_place(minilm: Path, machine: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("plan", minilm, "-i", machine, "-o", tmp_path / "plan.json")
    assert done.code == 0
    assert "tensors that the model does not have: embeddings.position_ids" in done.out
