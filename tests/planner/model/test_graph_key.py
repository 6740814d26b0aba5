from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from sample_plans import smol_plan

from bayplan.planner.model import graph_key as module
from bayplan.planner.model.graph_key import digest_files, graph_key
from bayplan.planner.model.library import Library
from bayplan.planner.model.source import ModelSource
from bayplan.planner.options import PlanOptions
from bayplan.schemas.format_config import FormatConfig
from bayplan.schemas.plan import FormatRule, Shard

if TYPE_CHECKING:
    from collections.abc import Callable

DIGEST, OTHER_DIGEST = f"sha256:{'0' * 64}", f"sha256:{'1' * 64}"
SHARD = Shard(file="model.safetensors", num_bytes=1000, header_digest=DIGEST)
TRUSTING = PlanOptions(trust_remote_code=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    return tmp_path


@pytest.fixture
def source(folder: Path) -> ModelSource:
    return ModelSource(
        label="llama",
        source=None,
        config_path=folder / "config.json",
        config_digest=DIGEST,
        shards=(SHARD,),
    )


def key(source: ModelSource, options: PlanOptions | None = None) -> str:
    files = digest_files(source, options or PlanOptions())
    assert files is not None
    return graph_key(source, options or PlanOptions(), files)


def test_the_key_is_the_same_twice_and_made_of_hex_digits(source: ModelSource) -> None:
    assert key(source) == key(source)
    assert len(key(source)) == 64
    assert set(key(source)) <= set("0123456789abcdef")


# What reading looks at, each with another value than the default; what only placing looks at is below.
READING_OPTIONS: dict[str, object] = {
    "format": "fp16",
    "batch": 2,
    "context": 77,
    "encoder_context": 5,
    "prefill_chunk": 3,
    "class_name": "LlamaModel",
    "no_split": ("LlamaMLP",),
    "hash_content": True,
    "variant": "fp16",
    "trust_remote_code": True,
    "checkpoint": "elsewhere",
    "library": "timm",
}
PLACING_OPTIONS: dict[str, object] = {
    "format_config": FormatConfig(format_rules=(FormatRule(pattern="head.*", format="int8"),)),
    "inventory": None,
    "max_memory": ("cpu=1GiB",),
    "objective": "prefill",
    "pins": ("*=cpu",),
    "device_map": {"": "cpu"},
    "free": True,
    "no_spill": True,
    "previous": smol_plan(),
    "time_limit_s": 5.0,
    "use_cache": False,
}


@pytest.mark.parametrize("name", PlanOptions.__struct_fields__)
def test_every_option_counts_but_those_that_place(source: ModelSource, name: str) -> None:
    value = (READING_OPTIONS | PLACING_OPTIONS)[name]
    options = msgspec.structs.replace(PlanOptions(), **{name: value})
    assert (key(source, options) != key(source)) == (name in READING_OPTIONS)


SOURCE_FIELDS: dict[str, object] = {
    "label": "other",
    "source": "org/name",
    "revision": "1" * 40,
    "library": Library.DIFFUSERS,
    "library_name": "resnet50",
    "config_digest": OTHER_DIGEST,
    "shards": None,
    "warnings": ("renamed",),
}


@pytest.mark.parametrize("name", SOURCE_FIELDS)
def test_every_field_of_the_source_counts(source: ModelSource, name: str) -> None:
    assert key(msgspec.structs.replace(source, **{name: SOURCE_FIELDS[name]})) != key(source)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "other.safetensors"},
        {"num_bytes": 1001},
        {"header_digest": OTHER_DIGEST},
        {"content_sha256": "1" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_fact_of_a_shard_counts(source: ModelSource, change: dict[str, object]) -> None:
    other = msgspec.structs.replace(source, shards=(msgspec.structs.replace(SHARD, **change),))
    assert key(other) != key(source)


def _python(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setattr(sys, "version", "3.99.0")


def _platform(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setattr(sys, "platform", "plan9")


def _bayplan_version(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setattr(module, "version", lambda name: "99.0.0")


def _entry_version(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setattr(module, "ENTRY_VERSION", 99)


def _accelerator(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setattr(module, "may_have_accelerator", lambda: not importlib.util.find_spec("no_such"))
    assert module.may_have_accelerator()


def _new_package(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site" / "fast_kernels-1.0.dist-info").mkdir(parents=True)
    patch.syspath_prepend(tmp_path / "site")


def _new_package_without_a_record(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site" / "fast_kernels").mkdir(parents=True)
    (tmp_path / "site" / "fast_kernels" / "__init__.py").write_text("")
    patch.syspath_prepend(tmp_path / "site")


def _new_module(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "fast_kernels.py").write_text("")
    patch.syspath_prepend(tmp_path)


def _variable(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patch.setenv("TRANSFORMERS_SDPA_FORCE_GQA", "1")


def _library_elsewhere(patch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "timm").mkdir()
    (tmp_path / "site" / "timm" / "__init__.py").write_text("")
    patch.syspath_prepend(tmp_path / "site")


@pytest.mark.parametrize(
    "change",
    [
        _python,
        _platform,
        _bayplan_version,
        _entry_version,
        _accelerator,
        _new_package,
        _new_package_without_a_record,
        _new_module,
        _variable,
        _library_elsewhere,
    ],
    ids=lambda change: change.__name__,
)
def test_every_fact_of_the_installation_counts(
    source: ModelSource,
    change: Callable[[pytest.MonkeyPatch, Path], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRANSFORMERS_SDPA_FORCE_GQA", raising=False)
        if change is _accelerator:
            patch.setattr(module, "may_have_accelerator", lambda: False)
        before = key(source)
        change(patch, tmp_path_factory.mktemp("installed"))
        assert key(source) != before
    assert key(source) == before or change is _accelerator


def test_a_package_installed_again_counts(
    source: ModelSource, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    (site / "fast_kernels-1.0.dist-info").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        before = key(source)
        os.utime(site / "fast_kernels-1.0.dist-info", (1000, 1000))
        assert key(source) != before


@pytest.mark.parametrize("file", ["fast_kernels.py", "fast_kernels/__init__.py"])
def test_a_module_that_was_changed_counts(
    source: ModelSource, file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    (site / file).parent.mkdir(exist_ok=True)
    (site / file).write_text("")
    (site / "aaa.py").symlink_to(site / "nowhere.py")  # as some editors lock files
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        before = key(source)
        os.utime(site / file, (1000, 1000))
        assert key(source) != before


def test_the_script_itself_and_what_cannot_be_imported_do_not_count(
    source: ModelSource, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.setattr(sys.modules["__main__"], "__file__", str(site / "script.py"), raising=False)
        before = key(source)
        for name in ("script.py", "plan.json", "results"):
            (site / name).touch()
        assert key(source) == before


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "COLUMNS", "TRANSFORMERS_API_KEY"])
def test_secrets_and_other_people_s_variables_do_not_count(
    source: ModelSource, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(name, raising=False)
    before = key(source)
    monkeypatch.setenv(name, "something")
    assert key(source) == before


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "config.4.30.0.json", "new.json"])
def test_every_config_in_the_folder_counts(source: ModelSource, folder: Path, name: str) -> None:
    before = key(source)
    (folder / name).write_text('{"changed": true}')
    assert key(source) != before


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.json", "README.md", "model.safetensors"])
def test_what_no_graph_depends_on_does_not_count(source: ModelSource, folder: Path, name: str) -> None:
    before = key(source)
    (folder / name).write_text("{}")
    assert key(source) == before


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoConfig": "other/repository--configuration.Config"}},
        {"auto_map": {"AutoModel": "modeling.Model"}},
        {"text_config": {"auto_map": {}}},
    ],
)
def test_trusted_code_may_read_anything_and_has_no_key(
    source: ModelSource, folder: Path, config: dict[str, object]
) -> None:
    (folder / "config.json").write_text(json.dumps(config))
    assert digest_files(source, TRUSTING) is None
    assert digest_files(source, PlanOptions()) is not None


def test_a_trusted_generate_of_the_checkpoint_s_own_has_no_key(source: ModelSource, folder: Path) -> None:
    (folder / "custom_generate").mkdir()
    assert digest_files(source, TRUSTING) is None
    assert digest_files(source, PlanOptions()) is not None


def test_code_that_nothing_names_is_not_run_and_does_not_count(source: ModelSource, folder: Path) -> None:
    before = key(source, TRUSTING)
    (folder / "train.py").write_text("x = 1")
    assert key(source, TRUSTING) == before


def test_more_json_than_a_model_has_is_not_read(source: ModelSource, folder: Path) -> None:
    with (folder / "data_set.json").open("wb") as file:
        file.truncate(64 * 2**20)
    assert digest_files(source, PlanOptions()) is None


def test_a_factory_has_no_key() -> None:
    assert digest_files(ModelSource(label="a.b:c", source="a.b:c", factory="a.b:c"), PlanOptions()) is None


def test_a_library_s_own_model_needs_no_files() -> None:
    assert digest_files(ModelSource(label="resnet50", source="resnet50"), PlanOptions()) == ()


def test_what_cannot_be_read_has_no_key(source: ModelSource, folder: Path) -> None:
    (folder / "config.json").unlink()
    assert digest_files(source, PlanOptions()) is None


def test_the_folder_itself_does_not_count(source: ModelSource, folder: Path, tmp_path: Path) -> None:
    before = key(source)
    moved = tmp_path / "moved"
    moved.mkdir()
    (folder / "config.json").rename(moved / "config.json")
    assert key(msgspec.structs.replace(source, config_path=moved / "config.json")) == before


def test_the_version_is_that_of_the_installed_package() -> None:
    assert module.version("bayplan") == importlib.metadata.version("bayplan")
