"""Makes a kept script of a run that was recorded: its parameters, its schemas, and the tools that it may call. For the
command line, for programs, for the dashboard, and for agents, who only propose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from tree_sitter import Node

from cellblock.base.errors import CellblockError, InvalidRequest, shorten
from cellblock.base.redaction import Redactor
from cellblock.base.settings.policy import Grant
from cellblock.base.settings.settings import Settings
from cellblock.base.visible import visible
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import (
    NO_INPUT,
    OPENING,
    BadScript,
    Header,
    KeptScript,
    parsed,
    pruned,
    said_of,
    schema_digest,
)
from cellblock.run.policy.asking import Caller
from cellblock.run.policy.grants import effect_of
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.script.slips import unfenced
from cellblock.script.trees import field, nodes_of
from cellblock.tools.catalog.model import Catalog, ToolEntry
from cellblock.tools.catalog.modules import server_of
from cellblock.types.learning.render import to_schema
from cellblock.types.learning.shape import bounded, shape_of

_COMMENT: Final = re.compile(r"\s*(?://|/\*+)\s*([^\n*]+)")
_OWN_INPUT: Final = re.compile(r"(?<![\w$.])input(?![\w$])")


def save(
    library: Library,
    settings: Settings,
    catalog: Catalog,
    recording: Recording,
    name: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    code: str | None = None,
    description: str = "",
    replace: bool = False,
    proposed: bool = False,
) -> KeptScript:
    """Keeps the script of a run: as a file, which nobody has approved yet, and with the recording as its test. Blocks.

    Args:
        library: Keeps it.
        settings: Have secrets, none of which may be in the file.
        catalog: The servers as they are now.
        recording: The run.
        name: The script's name.
        parameters: Literals of it that become its input, by name; with `code`, its input in that run.
        code: The script itself, where it was written for an input.
        description: Says what it does; empty: its first comment does.
        replace: Whether it may take the place of another script.
        proposed: Whether a client proposes it: there is less room for those.

    Raises:
        BadScript: It cannot be kept.
        ConfigError: No folder of kept scripts is set.
    """
    given = dict(parameters or {})
    if code is None:
        code = unfenced(recording.code)
        if code.startswith(OPENING):
            raise BadScript("The run is one of a kept script.", hint="It is kept already; edit its file.")
        if recording.response is None or any(
            one.get("severity") == "error" for one in recording.response.get("diagnostics", ())
        ):
            raise BadScript("The run did not end well.", hint="Keep one that did.")
        code = with_parameters(code, given)
    header, schemas = header_of(recording, code, catalog, given, description)
    if any(Redactor(server).text(code) != code for server in settings.servers.values()):
        raise BadScript(
            "The script has a secret of the configuration.", hint="Let a server add it, and run it again."
        )
    if proposed:
        library.check_room()
    return library.write(name, header, code, Trial(recording, given, schemas), replace=replace)


async def proposed(
    request: Mapping[str, Any],
    caller: Caller,
    may: Collection[str],
    run: Callable[..., Awaitable[RunResponse]],
    keep: Callable[[Recording, str], Awaitable[str]],
) -> RunResponse:
    """Runs a request that proposes its script, and keeps it for a person to look at where it ends well.

    Args:
        request: Has `propose`, a name.
        caller: Whose it is.
        may: The clients that may propose.
        run: Runs it, in a journal.
        keep: Keeps the script of a recording.

    Raises:
        InvalidRequest: The client may not, or the name is none.
    """
    if caller.grantee.principal not in may:
        raise InvalidRequest(
            "This client may not propose scripts.", hint="Leave `propose` out, or tell the user."
        )
    name, journal = request["propose"], Journal()
    response = await run(request, caller, journal=journal)
    if not response.ok:
        return response
    told = Diagnostic(
        severity="info", code="SCRIPT_PROPOSED", message=f"{name} waits for the user's approval."
    )
    try:
        await keep(await asyncio.to_thread(journal.snapshot), name)
    except (CellblockError, ValueError) as error:
        told = Diagnostic(
            severity="warning", code="SCRIPT_NOT_PROPOSED", message=f"{name} is not kept: {error}"
        )
    return response.model_copy(update={"diagnostics": [*response.diagnostics, told]})


def header_of(
    recording: Recording,
    code: str,
    catalog: Catalog,
    given: Mapping[str, Any],
    description: str = "",
) -> tuple[Header, dict[str, list[Any]]]:
    """Makes the header of a kept script, and the schemas of its tools.

    Args:
        recording: A run of it.
        code: The script.
        catalog: The servers as they are now.
        given: Its input in that run.
        description: Says what it does; empty: its first comment does.

    Raises:
        BadScript: A server that it calls is not connected, or its request's grants cannot be kept.
    """
    called = {call.name for call in recording.calls if call.kind == "call"}
    entries = {name: _entry(catalog, name) for name in sorted({*called, *_imported(code, catalog)})}
    try:
        for call in recording.calls:
            for part in (call.input or b"{}", call.answer) if call.kind == "call" and call.ok else ():
                json.loads(part)
        grants = Grant.model_validate(recording.request.get("grants") or {})
    except (ValueError, RecursionError):
        # It may be a stranger's file.
        raise BadScript("The run has grants, or calls, that cannot be kept.", hint="Keep another.") from None
    grants = grants.model_copy(update={"tools": None})
    if all(effect_of(tool) == "read" for tool in entries.values()):
        grants = grants.model_copy(update={"read_only": True})
    comment = _COMMENT.match(code)
    said = description or (comment[1].strip() if comment else f"Calls {', '.join(entries) or 'no tool'}.")
    header = Header(
        description=shorten(visible(said), 1024),
        input=input_schema(given),
        output=schema_of((recording.response or {}).get("result")),
        tools={name: schema_digest(tool) for name, tool in entries.items()},
        grants=grants,
    )
    return header, {name: said_of(tool) for name, tool in entries.items()}


def with_parameters(code: str, parameters: Mapping[str, Any]) -> str:
    """Returns a script in which literals are parameters: each stands for every literal of its value.

    Raises:
        BadScript: There is no such literal, a name is none, or the script has an `input` of its own.
    """
    if not parameters:
        return code
    if _OWN_INPUT.search(code):
        raise BadScript(
            "The script has an `input` of its own.", hint="Call that otherwise, run it again, and keep that."
        )
    source = code.encode()
    found = [*_literals(parsed(code))]
    edits: dict[int, tuple[int, bytes]] = {}
    for name, wanted in parameters.items():
        if re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,63}", name) is None or name == "__proto__":
            raise BadScript(
                f"{name[:80]!a} cannot be the name of a parameter.", hint="Use a word, such as `since`."
            )
        same = [
            node
            for node, value in found
            if type(value) is type(wanted) and value == wanted and node.start_byte not in edits
        ]
        if not same:
            raise BadScript(
                f"The script has no literal {json.dumps(wanted)[:80]}, or has it as another parameter.",
                hint="Write it as JSON, as in the script.",
            )
        edits |= {node.start_byte: (node.end_byte, f"input.{name}".encode()) for node in same}
    for start, (end, text) in sorted(edits.items(), reverse=True):
        source = source[:start] + text + source[end:]
    return source.decode()


def input_schema(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of inputs like one: with these names, and no others."""
    named = {name: schema_of(value) for name, value in given.items()}
    return {**NO_INPUT, "properties": named, "required": list(given)} if given else NO_INPUT


def schema_of(value: Any) -> dict[str, Any]:
    """Returns a schema of values like one, which says no more than one value shows: kinds, and names that may be."""
    # What is null once is something later, and what is a whole number need not be one.
    told = json.loads(
        json.dumps(value),
        parse_int=float,
        object_pairs_hook=lambda pairs: {name: one for name, one in pairs if one is not None},
    )
    made = to_schema(bounded(shape_of([told])))
    return {} if told is None else pruned(made, ("required", "additionalProperties", "format"))


# ---- inside ------------------------------------------------------------------------------------------


def _imported(code: str, catalog: Catalog) -> Iterator[str]:
    """Yields the tools that a script imports by their names."""
    for statement in parsed(code).children:
        server = server_of(catalog, _text(field(statement, "source"))[1:-1])
        if server is not None:
            names = (_text(field(one, "name")) for one in _nodes(statement, "import_specifier"))
            known = (server.by_export[name] for name in names if name in server.by_export)
            yield from (f"{server.server_id}.{tool.tool_name}" for tool in known)


def _nodes(root: Node, *types: str) -> Iterator[Node]:
    return chain.from_iterable(nodes_of(root, types, typescript=True).values())


def _text(node: Node | None) -> str:
    return node.text.decode() if node and node.text else ""


def _entry(catalog: Catalog, name: str) -> ToolEntry:
    server_id, _, tool_name = name.partition(".")
    server = catalog.servers.get(server_id)
    tool = None if server is None else server.tool(tool_name)
    if tool is None:
        raise BadScript(
            f"The script calls {shorten(name)}, which is not there now, so its schema cannot be kept.",
            hint="Keep it while its servers are connected.",
        )
    return tool


def _literals(root: Node) -> Iterator[tuple[Node, Any]]:
    """Yields the literals that an expression can stand for, with their values."""
    for node in _nodes(root, "string", "number", "true", "false", "null"):
        parent = node.parent
        named = [field(parent, name) for name in ("key", "name", "source")]
        if parent is None or node in named or parent.type in ("expression_statement", "literal_type"):
            continue
        text = _text(node)
        if text[:1] == "'":
            text = '"' + text[1:-1].replace('"', '\\"').replace("\\'", "'") + '"'
        with contextlib.suppress(ValueError):
            yield node, json.loads(text)
