"""`bayplan explain`: what binds a plan's devices, and where else one of its blocks could be.

Solves again, from the plan file alone: no model and no torch is loaded.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bayplan.commands.forms import AsForm, AsJson, OutputForm
from bayplan.commands.output import emit, emit_picture, say
from bayplan.commands.plan_options import PlanFile
from bayplan.commands.progress import ProgressBars
from bayplan.schemas.codec import read_plan
from bayplan.schemas.explanation import encode_explanation

BlockName = Annotated[
    str | None,
    typer.Argument(metavar="[BLOCK]", help="One of its blocks, by id; without: devices.", show_default=False),
]


def explain(
    plan: PlanFile, block: BlockName = None, form: AsForm = OutputForm.TEXT, json: AsJson = False
) -> None:
    """Say what binds each device of a plan and what more memory would gain, or why a block is where it is.

    Every figure is found by solving again, from the plan alone. Edited plans are explained as they stand.
    """
    decoded = read_plan(plan)
    from bayplan.planner.present.notices import reading_notices

    for notice in reading_notices(decoded.plan, digest_matches=decoded.digest_matches):
        say(f"warning: {plan}: {notice}")
    is_json = json or form is OutputForm.JSON
    with ProgressBars() as bars:
        from bayplan.planner.explain import explain_plan
        from bayplan.planner.explain_block import explain_block

        if block is None:
            found = explain_plan(decoded.plan, where=str(plan), progress=bars)
        else:
            of_block = explain_block(decoded.plan, block, where=str(plan), progress=bars)
    if is_json:
        emit(encode_explanation(found if block is None else of_block).decode())
        return
    from bayplan.planner.present.show_explain import render_block_explanation, render_explanation
    from bayplan.planner.present.wording import has_single_node

    if block is None:
        emit_picture(render_explanation(found))
    else:
        emit_picture(render_block_explanation(of_block, single_node=has_single_node([decoded.plan])))
