"""Says what a tool does to the world, as far as anybody says."""

from __future__ import annotations

from cellblock.tools.catalog.model import Effect, ToolEntry


def effect_of(tool: ToolEntry) -> Effect | None:
    """Returns the class that the user gives a tool, else what its server's annotations say; None when neither says
    anything.

    Where annotations contradict each other the worse one counts. A tool that says it is not read-only, and no more,
    is destructive: that is MCP's default for `destructiveHint`.
    """
    if tool.given is not None and tool.given.effect is not None:
        return tool.given.effect
    hints = tool.annotations or {}
    destroys, reads = hints.get("destructiveHint"), hints.get("readOnlyHint")
    if destroys is True:
        return "destructive"
    if reads is True:
        return "read"
    if destroys is False:
        return "write"
    return "destructive" if reads is False else None
