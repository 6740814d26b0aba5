"""An independent second look at a finished plan: every claim that the plan's own inputs contradict."""

from bayplan.planner.check.api import check

__all__ = ("check",)
