"""The built wheel holds what the repository's links point to."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "schemas", "planner", "executor")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy: setuptools leaves its work in the folder that it builds."""
    source = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    # Where the build backend is installed anyway, nothing has to be downloaded.
    offline = ["--no-build-isolation"] if importlib.util.find_spec("setuptools") else []
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run([*pip, *offline, "--wheel-dir", str(target), str(source)], check=True)
    (built,) = target.glob("bayplan-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "bayplan"
    wanted = {
        f"bayplan/{path.relative_to(package).as_posix()}"
        for folder in (package, *(package / name for name in ("schemas", "planner", "executor")))
        for pattern in ("*.py", "*/*.py", "*.json", "py.typed")
        for path in folder.glob(pattern)
    }
    assert {
        "bayplan/schemas/plan.py",
        "bayplan/planner/solve/placement.py",
        "bayplan/executor/load.py",
        "bayplan/skeleton/build.py",
        "bayplan/commands/app.py",
        "bayplan/__main__.py",
        "bayplan/py.typed",
        "bayplan/schemas/plan.schema.json",
        "bayplan/schemas/inventory.schema.json",
        "bayplan/schemas/report.schema.json",
    } <= wanted
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == wanted


@pytest.mark.slow
def test_the_wheel_works_where_the_repository_is_not(wheel: Path, tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import bayplan.schemas.published, bayplan.planner.present.diff, bayplan.executor.errors\n"
        "files = [bayplan.__file__, bayplan.schemas.published.__file__, bayplan.executor.errors.__file__]\n"
        "assert all(file.startswith(sys.argv[1]) for file in files), files\n"
    )
    subprocess.run([sys.executable, "-c", code, str(wheel)], check=True, cwd=tmp_path)
