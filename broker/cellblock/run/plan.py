"""Turns a request and a catalog into what a worker is sent: the script, its modules, and what is refused early."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cellblock.base.errors import shorten
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.run.hook import RunJournal
from cellblock.run.response import Diagnostic, error_diagnostic
from cellblock.script.imports import Imports
from cellblock.script.lines import SCRIPT_NAME
from cellblock.script.source import Script, prepare
from cellblock.tools.catalog.model import SCRIPTS, Catalog, Withheld
from cellblock.tools.catalog.modules import (
    DISCOVERY_EXPORTS,
    DISCOVERY_SPECIFIER,
    ERROR_CLASSES,
    ERRORS_SPECIFIER,
    IMPORT_SPECIFIER,
    SERVERS_PREFIX,
    ModuleUrls,
    data_url,
    fixed_modules,
    server_of,
)
from cellblock.types.absent_globals import absent_module_hint
from cellblock.types.check.ambient import imported_servers

MAX_IMPORT_ERRORS: Final = 20
"""Bounds the diagnostics of imports that cannot be satisfied; they end up in a model's context."""

_PREFIX: Final = "@codemode/"
_OURS: Final = re.compile(r"@?code-?mode(?:/|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Plan:
    """Holds what a worker is sent: `body` is that of its `Start`; `errors` refuse the run before a worker is
    used."""

    script: Script
    body: bytes
    errors: tuple[Diagnostic, ...]


def make_plan(
    code: str,
    catalog: Catalog,
    urls: ModuleUrls,
    imports: Imports | None = None,
    *,
    conventions: bool = True,
    journaled: bool = False,
    own_import: bool = False,
    name: str = SCRIPT_NAME,
) -> Plan:
    """Resolves a script's imports against a catalog. `imports` are what it imports; None to parse it here.
    `conventions`, `journaled`, `own_import` and `name` are as for `prepare`.

    A static import that cannot be satisfied would fail the whole module, so it is an error here and now; a
    dynamic one becomes an exception at its place in the script. Raises TooComplex.
    """
    import_url = fixed_modules()[IMPORT_SPECIFIER]

    def url_of(specifier: str) -> str | None:
        return urls.url_for(catalog, specifier) if specifier != IMPORT_SPECIFIER else None

    script = prepare(
        code,
        url_of,
        import_url,
        imports,
        conventions=conventions,
        journaled=journaled,
        own_import=own_import,
        name=name,
    )
    modules: dict[str, str] = {}
    refused: dict[str, dict[str, Any]] = {}
    errors: list[Diagnostic] = []
    for found in script.static:
        url = url_of(found.specifier)
        if url is not None:
            modules[found.specifier] = url
        if url is not None or len(errors) >= MAX_IMPORT_ERRORS:
            continue
        error = refusal(found.specifier, catalog)
        path = f"{name}:{found.line}:{found.column}"
        kind = error["errorClass"] if error["errorClass"] != "CodemodeError" else None
        errors.append(error_diagnostic("IMPORT_FAILURE", error["message"], error["hint"], path, kind))
    wanted = set(script.dynamic)
    if script.computed:
        for known in (catalog.servers, catalog.unavailable, catalog.denied):
            wanted |= {SERVERS_PREFIX + server_id for server_id in known}
        wanted |= {
            *fixed_modules(),
            *((SCRIPTS,) if server_of(catalog, SCRIPTS) else ()),
        } - {IMPORT_SPECIFIER}
    for specifier in sorted(wanted):
        url = url_of(specifier)
        if url is not None:
            modules[specifier] = url
        else:
            refused[specifier] = refusal(specifier, catalog)
    if script.dynamic or script.computed:
        modules[IMPORT_SPECIFIER] = import_url
    return _plan(script, modules, refused, errors)


def recorded_plan(journal: RunJournal, code: str, imports: Imports, name: str = SCRIPT_NAME) -> Plan:
    """Makes the plan of a run that goes on with a recorded one: its modules, and its script unless that is another.
    `name` is as for `prepare`. Raises TooComplex."""
    past = journal.past
    assert past is not None
    recorded = json.loads(past.body)
    urls: dict[str, str] = recorded["modules"]
    import_url = fixed_modules()[IMPORT_SPECIFIER]
    conventions = past.conventions
    script = prepare(code, urls.get, import_url, imports, conventions=conventions, journaled=True, name=name)
    if journal.plan_body is not None:
        return Plan(script, journal.plan_body, ())
    missing = [found for found in script.static if found.specifier not in urls]
    errors = [
        error_diagnostic(
            "IMPORT_FAILURE",
            f"Cannot import {found.specifier!r}: the recorded script did not import it, and so it is not recorded.",
            "Record the run again with a script that imports it.",
            f"{name}:{found.line}:{found.column}",
        )
        for found in missing[:MAX_IMPORT_ERRORS]
    ]
    return _plan(script, {**urls, IMPORT_SPECIFIER: import_url}, recorded["refused"], errors)


def _plan(
    script: Script, modules: Mapping[str, str], refused: Mapping[str, Any], errors: Iterable[Diagnostic]
) -> Plan:
    start = {
        "main": data_url(script.text, script.media_type),
        "modules": modules,
        "refused": refused,
        **({"entry": True} if script.entry is not None else {}),
    }
    return Plan(script, json.dumps(start).encode(), tuple(errors))


def calls_scripts(script: Script, catalog: Catalog) -> bool:
    """Says whether a script may call kept ones."""
    scripts = server_of(catalog, SCRIPTS)
    return scripts is not None and (
        script.computed or any(server_of(catalog, name) is scripts for name in script.specifiers)
    )


def imported_exports(script: Script, catalog: Catalog) -> dict[str, list[str]]:
    """Gives the names that a script's imports can give it, by module; `import(…)` of what is computed left out."""
    names: dict[str, list[str]] = {}
    for specifier in script.specifiers:
        server = server_of(catalog, specifier)
        if server is not None:
            names[specifier] = [tool.export_name for tool in server.tools]
        elif specifier == DISCOVERY_SPECIFIER:
            names[specifier] = list(DISCOVERY_EXPORTS)
        elif specifier == ERRORS_SPECIFIER:
            names[specifier] = list(ERROR_CLASSES)
    return names


def named_servers(script: Script, requested: Iterable[str], catalog: Catalog) -> frozenset[str]:
    """Gives the ids of the connected servers that a script imports, or its request asks for."""
    imported = {server.server_id for server in imported_servers(catalog, script.specifiers)}
    asked_for = {catalog.id_of(name.removeprefix(SERVERS_PREFIX)) for name in requested}
    return frozenset(imported | (asked_for & catalog.servers.keys()))


def imported_withheld(script: Script, catalog: Catalog) -> dict[str, Withheld]:
    """Gives the tools of the servers that a script imports which it is not given, by the names it would use."""
    servers = imported_servers(catalog, script.specifiers)
    return {tool.export_name: tool for server in servers for tool in server.withheld}


def refusal(specifier: str, catalog: Catalog) -> dict[str, Any]:
    """Says why a specifier cannot be imported, as the body of an error."""
    named = shorten(specifier)
    if specifier == SCRIPTS:
        return {
            "errorClass": "CodemodeError",
            "message": f"Cannot import {named!r}: no kept script is approved that this run may call.",
            "hint": "Do without. `cellblock scripts approve` lets one in; a kept script cannot call another.",
        }
    if not specifier.startswith(SERVERS_PREFIX):
        is_ours = specifier == _PREFIX[:-1] or specifier.startswith(_PREFIX)
        why = "there is no such module" if is_ours else "only @codemode/* modules exist here"
        return {
            "errorClass": "CodemodeError",
            "message": f"Cannot import {named!r}: {why}.",
            "hint": _likely_module(specifier, catalog),
        }
    server_id = specifier[len(SERVERS_PREFIX) :]
    why, hint = _no_server(server_id, catalog)
    return {
        "errorClass": _class_of(server_id, catalog),
        "message": f"Cannot import {named!r}: {why}.",
        "hint": hint,
        "serverId": shorten(server_id),
    }


def _class_of(server_id: str, catalog: Catalog) -> str:
    """Names the class of the error for a server that is not there (section 7.1)."""
    wants_login = server_id in catalog.unavailable and server_id in catalog.logins
    return "AuthenticationError" if wants_login or server_id in catalog.shut_out else "ServerNotFoundError"


def _no_server(server_id: str, catalog: Catalog) -> tuple[str, str]:
    """Says why there is no such server, and one corrective action."""
    reason = catalog.unavailable.get(server_id)
    if reason is not None:
        hint = catalog.may_come(server_id)
        if server_id in catalog.changing:
            return f"{reason}; nothing of it was called", hint
        return f"the server is not connected ({reason})", hint
    if server_id in catalog.denied:
        return "this client is not granted it", catalog.denied[server_id]
    near = [SERVERS_PREFIX + name for name in nearest_names(server_id, catalog.servers, limit=1)]
    return "there is no such server", f"{did_you_mean(near)} {_connected_servers(catalog)}".lstrip()


def _likely_module(specifier: str, catalog: Catalog) -> str:
    """Gives one corrective action: the module that was probably meant, else the servers that there are."""
    ours = _OURS.match(specifier)
    instead = absent_module_hint(specifier, catalog) if ours is None else None
    otherwise = _connected_servers(catalog) if ours else instead or f"Use tools of {SERVERS_PREFIX}* instead."
    if ours is None and ":" in specifier:
        return otherwise
    parts = (specifier[ours.end() :] if ours else specifier).strip("/").split("/")
    modules = {server_id: SERVERS_PREFIX + server_id for server_id in catalog.servers}
    if len(parts) == 1:
        fixed = {name.removeprefix(_PREFIX): name for name in fixed_modules() if name != IMPORT_SPECIFIER}
        # What is there under that very name comes first, then a server's own name.
        modules = {**fixed, "servers": "", **modules}
    # Whatever the folder is called, servers are the only modules that are in one.
    near = [modules[name] for name in nearest_names(parts[-1], modules, limit=1) if modules[name]]
    return did_you_mean(map(repr, near), otherwise)


def _connected_servers(catalog: Catalog) -> str:
    """Lists what can be imported, in one sentence."""
    return f"{catalog.who_is_connected()} Import one as {SERVERS_PREFIX}ID."


def capability_warnings(
    requested: tuple[str, ...], named: Iterable[str], catalog: Catalog
) -> list[Diagnostic]:
    """Gives a warning for each requested server that is not there (section 3.2.3), by its id or its configured
    name; and for each named one that is not as its user has approved it."""
    warnings = [
        Diagnostic(severity="warning", code="NOT_AS_PINNED", message=f"Server {server_id}: {sentence}")
        for server_id in sorted(named)
        if (server := catalog.servers.get(server_id)) is not None
        for sentence in server.unapproved
    ]
    for name in requested:
        server_id = catalog.id_of(name.removeprefix(SERVERS_PREFIX))
        if server_id in catalog.servers:
            continue
        why, hint = _no_server(server_id, catalog)
        warnings.append(
            Diagnostic(
                severity="warning",
                code="CAPABILITY_UNAVAILABLE",
                message=f"The requested capability {shorten(name)!r} is not available: {why}.",
                hint=hint,
                error_class=_class_of(server_id, catalog),
            )
        )
    return warnings
