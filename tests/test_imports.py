"""What comes in with an import, seen from a fresh interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
sys.modules["accelerate"] = None  # to every importer this looks like a package that is not installed
import bayplan
names = [module.name for module in pkgutil.walk_packages(bayplan.__path__, "bayplan.")]
assert len(names) > 50, names
for name in names:
    importlib.import_module(name)
assert not [name for name in sys.modules if name.startswith("accelerate.")]
"""
READING_IS_LIGHT = """
import sys
import bayplan
bayplan.read_plan, bayplan.encode_plan, bayplan.diff_plans, bayplan.Plan, bayplan.Report
from bayplan.schemas import published
heavy = {"torch", "transformers", "networkx", "highspy", "numpy", "huggingface_hub", "safetensors"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(
    os.environ.get("BAYPLAN_EXPECT_NO_ACCELERATE") != "1", reason="not the job without accelerate"
)
def test_this_job_runs_without_accelerate() -> None:
    assert importlib.util.find_spec("accelerate") is None


def test_every_module_imports_without_accelerate() -> None:
    run(IMPORT_EVERYTHING)


def test_reading_a_plan_needs_neither_torch_nor_a_solver() -> None:
    run(READING_IS_LIGHT)


def test_an_unknown_public_name() -> None:
    import bayplan

    with pytest.raises(AttributeError) as caught:
        bayplan.__getattr__("load_modle")
    assert str(caught.value) == "module 'bayplan' has no attribute 'load_modle'"
