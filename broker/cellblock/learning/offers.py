"""Results on their way to being looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cellblock.learning.observation import Kind, Observation
from cellblock.learning.sample import UNREAD


class ToolDefinition(Protocol):
    """What the learner needs of a tool; `catalog.model.ToolEntry` has it."""

    @property
    def tool_name(self) -> str:
        """Its name in MCP."""
        ...

    @property
    def input_schema(self) -> Any:
        """As declared."""
        ...

    @property
    def output_schema(self) -> Any:
        """As declared."""
        ...

    @property
    def given(self) -> GivenOutput | None:
        """What the user says of it."""
        ...


class GivenOutput(Protocol):
    """What the learner needs of what the user says of a tool; `catalog.model.Given` has it."""

    @property
    def output_schema(self) -> Any:
        """Of what a script gets, or None."""
        ...

    @property
    def json_text(self) -> bool:
        """Whether it is of the JSON in a text that a script gets."""
        ...


@dataclass(slots=True)
class Pace:
    """How many results of a tool have shown nothing new, and how many were passed by since."""

    unchanged: int = 0
    passed: int = 0


@dataclass(frozen=True, slots=True)
class Offer:
    """One result that waits to be looked at."""

    server: str
    tool: ToolDefinition
    kind: Kind
    body: bytes
    keep_sample: bool
    value: Any = UNREAD


class LooksApart(Protocol):
    """Looks at large results without holding this process; `execution.looks_apart` implements it."""

    def observe(self, offer: Offer) -> Observation | None:
        """What is seen of a large result; None for a small one. Called in the learner's thread, which waits."""
        ...
