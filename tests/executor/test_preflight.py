from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from executor_models import LAYERS, save_llama
from plan_maker import CPU, changed, device, make_plan

from bayplan.executor.errors import MemoryBudgetError
from bayplan.executor.preflight import Approved, check_runnable, last_checks, open_plan, preflight
from bayplan.schemas.checkpoint import open_folder
from bayplan.schemas.checkpoint_index import CheckpointError
from bayplan.schemas.codec import encode_plan
from bayplan.schemas.errors import BayplanError, PlanFormatError, PlanRefused, RefusalKind, UsageError
from bayplan.schemas.plan import Operation, Plan, TensorRule
from bayplan.schemas.progress import untold
from bayplan.schemas.types import Backend


@pytest.fixture
def copied(llama: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoint, to be damaged."""
    return Path(shutil.copytree(llama, tmp_path / "copy"))


def check(plan: Plan, folder: Path, **options: object) -> Approved:
    check_runnable(plan, trust_remote_code=False)
    given = {"model": None, "on": {}} | options
    return preflight(plan, open_folder(folder), **given)


def refusal(plan: Plan, folder: Path, **options: object) -> PlanRefused:
    with pytest.raises(PlanRefused) as raised:
        check(plan, folder, **options)
    return raised.value


def with_model(plan: Plan, **fields: object) -> Plan:
    return changed(plan, model=msgspec.structs.replace(plan.model, **fields))


def test_good_plan_is_approved_without_loading_anything(llama: Path) -> None:
    approved = check(make_plan(llama, stream=LAYERS), llama)
    assert all(param.is_meta for param in approved.model.parameters())
    notes = ("content unverified: the plan has no hash of some shards",)
    assert last_checks(approved, untold) == (False, notes)


# --- the plan itself ---------------------------------------------------------------------------------------


def test_file_that_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(PlanFormatError):
        open_plan(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BayplanError) as raised:
        open_plan(tmp_path / "plan.json")
    assert str(raised.value) == (
        f"{tmp_path / 'plan.json'}: cannot read the plan: got No such file or directory"
    )


def test_edited_file(llama: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = make_plan(llama)
    path.write_bytes(encode_plan(plan).replace(b'"batch": 2', b'"batch": 3'))
    with pytest.raises(PlanRefused) as raised:
        open_plan(path)
    assert raised.value.kind is RefusalKind.EDITED
    assert str(raised.value) == (
        f"{path}: plan refused (edited): changed after it was written: "
        f"got a plan that does not have the digest {plan.digest[:19]}..., needed the plan as it was made\n"
        "hint: make the change with bayplan plan --pin or --max-memory instead"
    )


def test_edited_plan_in_memory(llama: Path) -> None:
    plan = msgspec.structs.replace(make_plan(llama), applyable=False)
    with pytest.raises(PlanRefused) as raised:
        open_plan(plan)
    assert raised.value.kind is RefusalKind.EDITED


def test_contradictory_plan_in_memory(llama: Path) -> None:
    with pytest.raises(PlanFormatError, match="stands there 2 times"):
        open_plan(changed(make_plan(llama), blocks=make_plan(llama).blocks * 2))


def test_unexpected_digest(llama: Path) -> None:
    plan = make_plan(llama)
    expected = "sha256:" + "1" * 64
    assert open_plan(plan, expect_digest=plan.digest) is plan
    with pytest.raises(PlanRefused) as raised:
        open_plan(plan, expect_digest=expected)
    assert str(raised.value) == (
        f"plan: plan refused (edited): not the expected plan: got {plan.digest}, needed {expected}\n"
        "hint: review the plan again with bayplan show"
    )


# --- what this version runs --------------------------------------------------------------------------------


def runnable_refusal(plan: Plan) -> PlanRefused:
    with pytest.raises(PlanRefused) as raised:
        check_runnable(plan, trust_remote_code=False)
    return raised.value


def test_newer_semantics(llama: Path) -> None:
    assert str(runnable_refusal(changed(make_plan(llama), semantics=2))) == (
        "plan refused (unsupported): means more than this version knows: got semantics 2, needed at most 1\n"
        "hint: use the version of bayplan that wrote it"
    )


def test_features_that_are_not_yet_run(llama: Path) -> None:
    assert str(runnable_refusal(with_model(make_plan(llama), library="torch"))) == (
        "plan refused (unsupported): uses what this version does not run yet: "
        "got models of other libraries than transformers"
    )
    conversion = TensorRule(
        target="*", sources=("a.*",), operations=(Operation(kind="transpose", dims=(0, 1)),)
    )
    assert str(runnable_refusal(changed(make_plan(llama), rules=(conversion,)))) == (
        "plan refused (unsupported): uses what this version does not run yet: "
        "got checkpoint tensors that are more than renamed\n"
        "hint: plan again for this machine, without -i"
    )


@pytest.mark.parametrize(
    ("fields", "got"), [({"errored": True}, "errored"), ({"complete": False}, "incomplete")]
)
def test_no_whole_plan(llama: Path, fields: dict[str, bool], got: str) -> None:
    plan = changed(make_plan(llama), applyable=False, **fields)
    assert str(runnable_refusal(plan)) == (
        f"plan refused (unsupported): no whole plan: got {got}\nhint: plan again"
    )


def test_unbound_plan(llama: Path) -> None:
    plan = changed(with_model(make_plan(llama), checkpoint=None), applyable=False)
    refused = runnable_refusal(plan)
    assert refused.kind is RefusalKind.UNBOUND
    assert str(refused) == (
        "plan refused (unbound): made from a config alone: needed the identity of the weights\n"
        "hint: bayplan bind PLAN --checkpoint DIR adds it"
    )


def test_plan_that_says_no(llama: Path) -> None:
    assert str(runnable_refusal(changed(make_plan(llama), applyable=False))) == (
        "plan refused (unsupported): the plan says that it cannot be carried out\nhint: plan again"
    )


def test_code_of_the_checkpoint_needs_permission(llama: Path) -> None:
    plan = with_model(make_plan(llama), trust_remote_code=True)
    check_runnable(plan, trust_remote_code=True)
    with pytest.raises(BayplanError) as raised:
        check_runnable(plan, trust_remote_code=False)
    assert str(raised.value) == (
        "LlamaForCausalLM is defined by code that comes with the checkpoint: "
        "needed permission to run that code\n"
        "hint: read the code first; --trust-remote-code runs it"
    )


# --- the checkpoint ----------------------------------------------------------------------------------------


def test_other_model_of_the_same_class(llama: Path, tmp_path: Path) -> None:
    other = save_llama(tmp_path, hidden_size=32)
    refused = refusal(make_plan(llama), other)
    assert refused.kind is RefusalKind.FOREIGN
    assert str(refused) == (
        f"{other}: plan refused (foreign): the folder holds another model: "
        "got LlamaForCausalLM (69984 parameters), needed LlamaForCausalLM (170688 parameters)\n"
        "hint: give the folder of the planned model, or plan for this one"
    )


def test_model_of_another_class(llama: Path, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config |= {"model_type": "bert", "architectures": ["BertModel"]}
    (copied / "config.json").write_text(json.dumps(config))
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.FOREIGN
    assert str(refused) == (
        f"{copied}: plan refused (foreign): the folder holds another model: "
        "got BertModel (LlamaForCausalLM cannot be built from a config of bert), "
        "needed LlamaForCausalLM (170688 parameters)\n"
        "hint: give the folder of the planned model, or plan for this one"
    )


def test_config_with_other_bytes_for_the_same_model(llama: Path, copied: Path) -> None:
    with (copied / "config.json").open("a") as file:
        file.write("\n")
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.STALE
    assert str(refused) == (
        f"{copied}: plan refused (stale): the checkpoint changed since the plan was made: "
        "got config.json has other bytes, needed the planned files\n"
        "hint: get the planned revision, or plan again from this folder"
    )


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("[" * 200_000, "the model's config is nested too deeply"),
        (
            "no JSON",
            "the model's config is not JSON (JSONDecodeError: Expecting value: line 1 column 1 (char 0))",
        ),
        ("{}", "the model's config is empty"),
    ],
)
def test_folder_whose_config_makes_no_model(llama: Path, copied: Path, text: str, got: str) -> None:
    (copied / "config.json").write_text(text)
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.FOREIGN
    assert str(refused) == (
        f"{copied}: plan refused (foreign): the folder's config is another, and makes no model here: "
        f"got {got}, needed LlamaForCausalLM (170688 parameters)\n"
        "hint: give the folder of the planned model, or plan for this one"
    )


def test_folder_whose_config_transformers_refuses(llama: Path, copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text()) | {"num_hidden_layers": "many"}
    (copied / "config.json").write_text(json.dumps(config))
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.FOREIGN
    assert "refuses this config of llama" in refused.got


def test_config_that_cannot_be_read(llama: Path, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    plan = make_plan(llama)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BayplanError) as raised:
        check(plan, copied)
    assert str(raised.value) == (
        f"{copied / 'config.json'}: the config cannot be read: got Permission denied"
    )


def test_byte_changed_in_a_header(llama: Path, copied: Path) -> None:
    shard = copied / "model.safetensors"
    data = bytearray(shard.read_bytes())
    position = data.index(b'"F32"')
    data[position : position + 5] = b'"I32"'
    shard.write_bytes(data)
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.STALE
    assert refused.got == "model.safetensors has another header"


def test_header_is_compared_before_it_is_parsed(llama: Path, copied: Path) -> None:
    shard = copied / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[8:9] = b"!"
    shard.write_bytes(data)
    assert refusal(make_plan(llama), copied).kind is RefusalKind.STALE


def test_truncated_shard(llama: Path, copied: Path) -> None:
    shard = copied / "model.safetensors"
    planned = shard.stat().st_size
    with shard.open("r+b") as file:
        file.truncate(planned - 4)
    refused = refusal(make_plan(llama), copied)
    assert refused.kind is RefusalKind.STALE
    assert refused.got.startswith(f"model.safetensors has {planned - 4} bytes (")


def test_missing_and_new_shards_are_all_named(llama: Path, sharded_llama: Path, copied: Path) -> None:
    plan = make_plan(llama)
    (copied / "model.safetensors").unlink()
    for file in sharded_llama.glob("model*"):
        shutil.copy(file, copied)
    names = open_folder(copied).shard_names
    refused = refusal(plan, copied)
    assert refused.kind is RefusalKind.STALE
    facts = [f"{name} is new" for name in names] + ["model.safetensors is missing"]
    shown = facts if len(facts) <= 8 else [*facts[:8], f"and {len(facts) - 8} more"]
    assert refused.got == "; ".join(shown)


@pytest.mark.parametrize(
    ("target", "got"),
    [("gone", "No such file or directory"), ("model.safetensors", "Too many levels of symbolic links")],
)
def test_shard_that_is_a_link_to_nowhere(llama: Path, copied: Path, target: str, got: str) -> None:
    shard = copied / "model.safetensors"
    shard.unlink()
    shard.symlink_to(target)
    with pytest.raises(CheckpointError) as raised:
        check(make_plan(llama), copied)
    assert str(raised.value) == f"{shard}: cannot be read: got {got}"


def test_folder_without_a_config(llama: Path, copied: Path) -> None:
    (copied / "config.json").unlink()
    with pytest.raises(BayplanError) as raised:
        check(make_plan(llama), copied)
    assert str(raised.value) == f"{copied}: no config beside the weights: needed config.json"


def test_library_that_builds_other_tensors(llama: Path) -> None:
    plan = with_model(make_plan(llama), tree_digest="sha256:" + "0" * 64, library_version="4.0.0")
    refused = refusal(plan, llama)
    assert refused.kind is RefusalKind.FOREIGN
    assert refused.needed == "tree sha256:000000000000, planned with 4.0.0"
    assert refused.hint == "install the planned version, or plan again with this one"


def test_other_attention_implementation(llama: Path) -> None:
    refused = refusal(with_model(make_plan(llama), attn_implementation="flex_attention"), llama)
    assert str(refused) == (
        "plan refused (foreign): another attention implementation gives other bits: "
        "got sdpa, needed flex_attention\n"
        "hint: plan again on a machine with the same libraries"
    )


def test_other_experts_implementation(llama: Path) -> None:
    refused = refusal(with_model(make_plan(llama), experts_implementation="other"), llama)
    there = approved_experts(llama)
    assert str(refused) == (
        "plan refused (foreign): another experts implementation gives other bits: "
        f"got {there}, needed other\n"
        "hint: plan again on a machine with the same libraries"
    )
    assert check(with_model(make_plan(llama), experts_implementation=there), llama)


def approved_experts(folder: Path) -> str:
    found = check(make_plan(folder), folder).model.config._experts_implementation
    assert isinstance(found, str)
    return found


def hashed(plan: Plan, folder: Path) -> Plan:
    assert plan.model.checkpoint is not None
    shards = tuple(
        msgspec.structs.replace(
            shard, content_sha256=hashlib.sha256((folder / shard.file).read_bytes()).hexdigest()
        )
        for shard in plan.model.checkpoint.shards
    )
    return with_model(plan, checkpoint=msgspec.structs.replace(plan.model.checkpoint, shards=shards))


def test_content_is_verified_where_the_plan_has_hashes(sharded_llama: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = hashed(make_plan(sharded_llama), sharded_llama)
    approved = check(plan, sharded_llama)
    assert last_checks(approved, lambda *step: told.append(step)) == (True, ())
    assert plan.model.checkpoint is not None
    total = sum(shard.num_bytes for shard in plan.model.checkpoint.shards)
    assert told[-1] == ("verify", total, total)


def test_weight_changed_by_one_bit(llama: Path, copied: Path) -> None:
    plan = hashed(make_plan(llama), llama)
    shard = copied / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(PlanRefused) as raised:
        last_checks(check(plan, copied), untold)
    assert raised.value.kind is RefusalKind.STALE
    assert raised.value.got == "model.safetensors has other tensor bytes"


# --- the machine -------------------------------------------------------------------------------------------


def test_machine_that_is_too_small(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.executor.machine.host_capacity_bytes", lambda: 2**20)
    refused = refusal(make_plan(llama), llama)
    assert refused.kind is RefusalKind.FOREIGN
    assert str(refused) == (
        "node0/cpu: plan refused (foreign): made for a machine with more memory: "
        f"got 1.00 MiB, needed {refused.needed}\n"
        "hint: plan again for this machine"
    )


def test_memory_that_is_not_free_now(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayplan.executor.machine.host_available_bytes", lambda: 5)
    plan = make_plan(llama)
    with pytest.raises(MemoryBudgetError) as raised:
        last_checks(check(plan, llama), untold)
    ledger = plan.devices[0].ledger
    needed = ledger.weights[1] + ledger.kv[1] + ledger.activations[1] + ledger.staging[1]
    assert (raised.value.device, raised.value.needed_bytes, raised.value.available_bytes) == (CPU, needed, 5)


def test_unknown_device_in_on(llama: Path) -> None:
    with pytest.raises(UsageError) as raised:
        check(make_plan(llama), llama, on={"node0/gpu7": "cpu"})
    assert str(raised.value) == "--on: unknown device: got node0/gpu7, needed one of node0/cpu"


def test_device_that_this_version_does_not_run_on(llama: Path) -> None:
    refused = refusal(make_plan(llama), llama, on={"cpu": "cuda:0"})
    assert refused.kind is RefusalKind.UNSUPPORTED
    assert str(refused) == (
        "node0/cpu: plan refused (unsupported): this version runs on the CPU only: got cuda:0, needed cpu"
    )


def test_device_that_this_machine_lacks(llama: Path) -> None:
    from bayplan.executor.machine import match_devices

    plan = make_plan(llama)
    gpu = msgspec.structs.replace(device(weights=1, staging=1), backend=Backend.CUDA)
    with pytest.raises(PlanRefused) as raised:
        match_devices(msgspec.structs.replace(plan, devices=(gpu,)), {})
    assert str(raised.value) == (
        "node0/cpu: plan refused (foreign): this machine has no such device: got cuda, needed cpu"
    )
