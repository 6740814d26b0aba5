"""Rules of the code base that no linter of ours knows: sizes, who imports what, the list of public names."""

from __future__ import annotations

import ast
import sys
import typing
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

import bayplan
from bayplan.schemas import plan

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "schemas": "bayplan.schemas",
    "planner": "bayplan.planner",
    "executor": "bayplan.executor",
    "src/bayplan/skeleton": "bayplan.skeleton",
    "src/bayplan/commands": "bayplan.commands",
}
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

PUBLIC_NAMES = (
    "BayplanError",
    "Estimate",
    "Infeasible",
    "Inventory",
    "Plan",
    "PlanFormatError",
    "PlanRefused",
    "Report",
    "diff_plans",
    "empty_weights",
    "encode_plan",
    "estimate",
    "load_model",
    "loaded",
    "plan_model",
    "read_inventory",
    "read_plan",
    "release",
    "report",
)

PLANNER_READERS = (
    "bayplan.planner.model.",
    "bayplan.planner.hardware.probe",
    "bayplan.planner.hardware.calibrate",
)
"""The planner's readers: they may see a live model or this machine's torch; the rest works on structs."""

TRANSFORMERS_INTERNALS = (
    "transformers.conversion_mapping",
    "transformers.core_model_loading",
    "transformers.integrations",
)


class Module(NamedTuple):
    """One source file of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.rpartition(".")[0]


def _modules() -> list[Module]:
    paths = {path: f"bayplan.{path.stem}" for path in (ROOT / "src" / "bayplan").glob("*.py")}
    for folder, package in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder).with_suffix("").as_posix().replace("/", ".")
            paths[path] = f"{package}.{inner}"
    return [Module(name, path, ast.parse(path.read_text())) for path, name in sorted(paths.items())]


MODULES = _modules()


def imported_names(module: Module) -> set[str]:
    """Return every dotted name that a module imports anywhere in it; of `from a import b`, `a` and `a.b`."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: relative import"
            assert node.module is not None
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def importers(*prefixes: str) -> set[str]:
    """Return the modules that import one of the names or something below it."""
    return {
        module.name
        for module in MODULES
        for name in imported_names(module)
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
    }


def lines_of_code(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the length of a function from `def` to its end, without its docstring."""
    assert function.end_lineno is not None
    num_lines = function.end_lineno - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        assert first.end_lineno is not None
        num_lines -= first.end_lineno - first.lineno + 1
    return num_lines


def test_the_scan_sees_the_code() -> None:
    packages = Counter(module.package for module in MODULES)
    rooms = {"check", "estimate", "hardware", "model", "present", "solve"}
    assert set(packages) == {"bayplan", *FOLDERS.values(), *(f"bayplan.planner.{room}" for room in rooms)}
    assert min(packages[package] for package in FOLDERS.values()) >= 5
    assert "bayplan.schemas.codec" in importers("msgspec")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_sizes(module: Module) -> None:
    assert len(module.path.read_text().splitlines()) <= MAX_MODULE_LINES
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            num_lines = lines_of_code(node)
            assert num_lines < MAX_FUNCTION_LINES, f"{module.path}:{node.lineno}: {node.name}: {num_lines}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_nothing_catches_everything(module: Module) -> None:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            caught = (
                {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else {""}
            )
            assert not caught & {"", "Exception"}, f"{module.path}:{node.lineno}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_ascii_only(module: Module) -> None:
    assert module.path.read_bytes().isascii()


def test_no_module_is_a_drawer() -> None:
    names = {module.path.stem for module in MODULES}
    assert not names & {"utils", "common", "helpers", "base", "misc"}


def test_public_names() -> None:
    assert bayplan.__all__ == PUBLIC_NAMES
    assert set(dir(bayplan)) == {"__version__", *PUBLIC_NAMES}
    for name in PUBLIC_NAMES:
        assert getattr(bayplan, name).__module__.startswith("bayplan."), name


def test_schemas_import_the_standard_library_and_msgspec_only() -> None:
    allowed = {*sys.stdlib_module_names, "msgspec"}
    for module in MODULES:
        if module.package == "bayplan.schemas":
            others = {name for name in imported_names(module) if name.partition(".")[0] not in allowed}
            strangers = {name for name in others if not f"{name}.".startswith("bayplan.schemas.")}
            assert not strangers, f"{module.name} imports {strangers}"


def test_only_the_planner_s_readers_see_a_live_model() -> None:
    seen = importers("torch", "transformers", "bayplan.skeleton")
    planner = {name for name in seen if name.startswith("bayplan.planner.")}
    assert planner
    assert not {name for name in planner if not name.startswith(PLANNER_READERS)}


def test_planner_and_executor_meet_only_at_the_top() -> None:
    planner, executor = importers("bayplan.planner"), importers("bayplan.executor")
    tops = {"bayplan.__init__", "bayplan.demo"}
    assert {name for name in planner & executor if not name.startswith("bayplan.commands.")} <= tops
    assert not {name for name in planner if name.startswith(("bayplan.executor.", "bayplan.skeleton."))}
    assert not {name for name in executor if name.startswith(("bayplan.planner.", "bayplan.skeleton."))}


def test_solvers_stay_in_the_planner() -> None:
    assert all(name.startswith("bayplan.planner.") for name in importers("networkx", "highspy"))


def test_bitsandbytes_is_used_in_one_module_on_each_side() -> None:
    users = Counter(name.rpartition(".")[0] for name in importers("bitsandbytes"))
    assert set(users) <= {"bayplan.executor", "bayplan.skeleton"}
    assert all(count == 1 for count in users.values()), users


def test_transformers_internals_are_used_in_one_module() -> None:
    assert importers(*TRANSFORMERS_INTERNALS) <= {"bayplan.skeleton.transformers_adapter"}


def test_accelerate_is_imported_nowhere() -> None:
    assert importers("accelerate") == set()


def test_only_schemas_turn_structs_into_json_and_back() -> None:
    writers = {"dumps", "dump", "to_builtins", "convert", "encode", "decode"}
    for module in MODULES:
        if module.package == "bayplan.schemas":
            continue
        assert not {name for name in imported_names(module) if name.startswith(("msgspec.json", "orjson"))}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in writers:
                owner = ast.unparse(node.value)
                assert owner not in {"json", "msgspec", "msgspec.json"}, f"{module.path}:{node.lineno}"


def _types_in(wanted: object) -> set[object]:
    """Return a type, the types inside it, and those of the fields of every struct among them."""
    found: set[object] = set()
    waiting = [wanted]
    while waiting:
        current = waiting.pop()
        if current in found:
            continue
        found.add(current)
        waiting += [argument for argument in typing.get_args(current) if argument is not Ellipsis]
        if isinstance(current, type) and issubclass(current, msgspec.Struct):
            waiting += typing.get_type_hints(current).values()
    return found


def test_every_field_of_the_plan_has_a_type_of_its_own() -> None:
    found = _types_in(plan.Plan)
    assert plan.Experts in found
    assert not found & {typing.Any, object, dict, list, tuple, float, bytes}


def test_the_structs_of_the_plan_are_frozen_and_let_unknown_fields_pass() -> None:
    structs = {t for t in _types_in(plan.Plan) if isinstance(t, type) and issubclass(t, msgspec.Struct)}
    assert len(structs) > 20
    for struct in structs:
        assert struct.__struct_config__.frozen, struct
        assert not struct.__struct_config__.forbid_unknown_fields, struct


def test_executor_tests_do_not_plan() -> None:
    """They start from plans that were written down: a fault of the planner must not hide another."""
    support = {path.stem: path for path in (ROOT / "tests" / "support").glob("*.py")}
    waiting = list((ROOT / "tests" / "executor").rglob("*.py"))
    assert waiting
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            names = imported_names(Module(path.stem, path, ast.parse(path.read_text())))
            assert not [name for name in names if f"{name}.".startswith("bayplan.planner.")], path
            waiting += [support[name] for name in names if name in support]


def test_test_folders_hold_tests_and_are_no_packages() -> None:
    """In importlib mode two folders may have a test module of one name; helpers lie in `support` alone."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not [path for path in files if path.name == "__init__.py"]
    strays = {path for path in files if not path.name.startswith("test_")}
    assert {path.parent for path in strays} <= {ROOT / "tests" / "support"}
