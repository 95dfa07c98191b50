"""What the hint of a failed call says, by what is certain of it and of its tool."""

import pytest

from cellblock.base.errors import Certainty, ToolCallError
from cellblock.run.failed_calls import LOOK_FIRST, REPEAT, UNCHANGED, fit_hint
from cellblock.tools.catalog.model import ToolEntry

CORRECT = "Read the tool's message and correct the call."
READS = {"readOnlyHint": True}


@pytest.mark.parametrize(
    ("message", "certainty", "annotations", "hint"),
    [
        ("the bank did not answer pay within 60 s", Certainty.MAY_HAVE_RUN, None, LOOK_FIRST),
        ("the bank did not answer pay within 60 s", Certainty.MAY_HAVE_RUN, READS, REPEAT),
        ("it might already have been sent", Certainty.COMPLETED, None, LOOK_FIRST),
        ("import partially done", Certainty.COMPLETED, {"readOnlyHint": False}, LOOK_FIRST),
        ("no such customer", Certainty.COMPLETED, None, CORRECT),
        ("no such customer", Certainty.COMPLETED, READS, f"{CORRECT} {UNCHANGED}"),
        ("no such customer", Certainty.MAY_HAVE_RUN, READS, CORRECT),
        ("timed out while it waited for its turn", Certainty.NOT_STARTED, None, CORRECT),
    ],
)
def test_hints(message: str, certainty: Certainty, annotations: dict[str, bool] | None, hint: str) -> None:
    error = ToolCallError(message, hint=CORRECT, certainty=certainty)
    fit_hint(error, ToolEntry("pay", "pay", annotations=annotations))
    assert error.hint == hint
