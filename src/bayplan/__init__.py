"""bayplan: plan where every layer of a model goes, review the plan, stream the model by it.

The public names are loaded on first use: `import bayplan` costs nothing, and reading plans needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayplan.executor.load import load_model, loaded, release
    from bayplan.executor.report import report
    from bayplan.planner.api import plan_model
    from bayplan.planner.estimate.api import estimate
    from bayplan.planner.present.diff import diff_plans
    from bayplan.schemas.codec import encode_plan, read_inventory, read_plan
    from bayplan.schemas.errors import BayplanError, Infeasible, PlanFormatError, PlanRefused
    from bayplan.schemas.estimate import Estimate
    from bayplan.schemas.hardware import Inventory
    from bayplan.schemas.plan import Plan
    from bayplan.schemas.report import Report
    from bayplan.skeleton.empty import empty_weights

__version__ = "0.1.0"

_HOME = {
    "BayplanError": "bayplan.schemas.errors",
    "Estimate": "bayplan.schemas.estimate",
    "Infeasible": "bayplan.schemas.errors",
    "Inventory": "bayplan.schemas.hardware",
    "Plan": "bayplan.schemas.plan",
    "PlanFormatError": "bayplan.schemas.errors",
    "PlanRefused": "bayplan.schemas.errors",
    "Report": "bayplan.schemas.report",
    "diff_plans": "bayplan.planner.present.diff",
    "empty_weights": "bayplan.skeleton.empty",
    "encode_plan": "bayplan.schemas.codec",
    "estimate": "bayplan.planner.estimate.api",
    "load_model": "bayplan.executor.load",
    "loaded": "bayplan.executor.load",
    "plan_model": "bayplan.planner.api",
    "read_inventory": "bayplan.schemas.codec",
    "read_plan": "bayplan.schemas.codec",
    "release": "bayplan.executor.load",
    "report": "bayplan.executor.report",
}

__all__ = (
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


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'bayplan' has no attribute {name!r}")
    found: object = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted((*__all__, "__version__"))
