"""Says of a module that does not exist which one was probably meant, or which ones there are."""

from __future__ import annotations

import re
from typing import Final

from cellblock.catalog.absent_globals import absent_module_hint
from cellblock.catalog.model import Catalog
from cellblock.catalog.modules import IMPORT_SPECIFIER, SERVERS_PREFIX, fixed_modules
from cellblock.catalog.suggest import nearest_names

MAX_LISTED: Final = 30
"""Bounds the servers that a hint names; they end up in a model's context."""

_PREFIX: Final = "@codemode/"
_OURS: Final = re.compile(r"@?code-?mode(?:/|$)", re.IGNORECASE)
_SERVERS: Final = "servers"


def no_module(specifier: str) -> str:
    """Says why a specifier that names no server is no module, as the end of a sentence."""
    if specifier == _PREFIX[:-1] or specifier.startswith(_PREFIX):
        return "there is no such module"
    return "only @codemode/* modules exist here"


def likely_module(specifier: str, catalog: Catalog) -> str:
    """Gives one corrective action: the module that was probably meant, else the servers that there are."""
    ours = _OURS.match(specifier)
    instead = None if ours else absent_module_hint(specifier, catalog)
    if ours is None and ":" in specifier:
        return instead or f"Use tools of {SERVERS_PREFIX}* instead."
    parts = (specifier[ours.end() :] if ours else specifier).strip("/").split("/")
    if len(parts) > 1:
        # Whatever the folder is called, servers are the only modules that are in one.
        near = nearest_names(parts[-1], catalog.servers)
        if near:
            return _meant(SERVERS_PREFIX + near[0])
    else:
        fixed = {name.removeprefix(_PREFIX): name for name in fixed_modules() if name != IMPORT_SPECIFIER}
        servers = {server_id: SERVERS_PREFIX + server_id for server_id in catalog.servers}
        # What is there under that very name comes first, then a server's own name.
        modules = {**fixed, _SERVERS: "", **servers}
        near = nearest_names(parts[0], modules)
        if near and modules[near[0]]:
            return _meant(modules[near[0]])
    return connected_servers(catalog) if ours else instead or f"Use tools of {SERVERS_PREFIX}* instead."


def connected_servers(catalog: Catalog) -> str:
    """Lists what can be imported, in one sentence."""
    names = list(catalog.servers)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    known = f"{', '.join(names[:MAX_LISTED])}{more}" if names else "none"
    return f"Connected servers: {known}. Import one as {SERVERS_PREFIX}ID."


def _meant(module: str) -> str:
    return f"Did you mean {module!r}?"
