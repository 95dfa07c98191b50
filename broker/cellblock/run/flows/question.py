"""A question about a flow shows what a call would carry where."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


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

    @classmethod
    def unpack(cls, said: str, packed: str) -> FlowQuestion | None:
        """Decodes what `pack` has made; None where nothing was."""
        if not packed:
            return None
        data: dict[str, Any] = json.loads(packed)
        return cls(said=said, found=tuple(data["found"]), rule=data["rule"], label=data["label"])
