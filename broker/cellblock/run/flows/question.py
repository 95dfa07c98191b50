"""A question about a flow shows what a call would carry where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cellblock.base.questions import ParkedQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowQuestion:
    """Says what a question about a flow shows besides the call.

    Args:
        said: What would go where, and why that is asked.
        found: Texts of this run's results that were found in the input; they explain, and prove nothing.
        rule: The rule that would allow it from now on, as JSON.
        label: The label by which it was judged, packed.
    """

    said: str
    found: tuple[str, ...] = ()
    rule: str = ""
    label: str = ""

    def pack(self) -> str:
        """Encodes what is shown, for a question that is written down."""
        return json.dumps({"found": self.found, "rule": self.rule, "label": self.label})


def flow_of(question: ParkedQuestion) -> FlowQuestion | None:
    """Returns what a question shows of a flow; None where it is not about one."""
    if question.kind != "approval" or not question.request:
        return None
    data: dict[str, Any] = json.loads(question.request)
    return FlowQuestion(
        said=question.said, found=tuple(data["found"]), rule=data["rule"], label=data["label"]
    )
