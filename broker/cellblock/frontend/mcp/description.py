"""Writes the description of `codemode.run`: its opening, the manual, and declarations within a budget."""

from __future__ import annotations

from collections.abc import Sequence

from cellblock.catalog.model import Catalog
from cellblock.frontend.mcp.context import Declared, declarations_in_budget
from cellblock.frontend.mcp.manual import manual
from cellblock.frontend.mcp.opening import opening
from cellblock.frontend.service import RunService


def description(
    service: RunService, catalog: Catalog, principal: str, used: Sequence[str] = (), budget: int | None = None
) -> Declared:
    """Returns the description for a client that is shown a catalog, and which servers it declares whole.

    Args:
        service: The broker.
        catalog: What the client is granted.
        principal: Whose grants these are.
        used: Ids of servers that the client has used, those that matter most first.
        budget: Characters for declarations; None: as configured.
    """
    config = service.front_config
    room = config.shown.declaration_chars if budget is None else budget
    declared = declarations_in_budget(catalog, room, used)
    # Not by the catalog: that of a client without restrictions may be an older one, or a copy.
    named = None if service.policy.grants_of(principal) is None else catalog
    details = manual(config, named)
    return Declared("\n\n".join([opening(catalog), details, declared.text]), declared.whole)
