"""Keeps a recorded run as a script: for the command line, for programs, for the dashboard, and for agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from cellblock.base.errors import CellblockError, InvalidRequest
from cellblock.base.redaction import Redactor
from cellblock.base.settings.settings import Settings
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.saving import code_of, header_of, with_parameters
from cellblock.record.scripts.script_file import BadScript, KeptScript, check_name
from cellblock.run.policy.asking import Caller
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.tools.catalog.model import Catalog


async def save(
    library: Library,
    settings: Settings,
    catalog: Catalog,
    recording: Recording,
    name: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    written: tuple[str, Mapping[str, Any]] | None = None,
    description: str = "",
    replace: bool = False,
    proposed: bool = False,
) -> KeptScript:
    """Keeps the script of a run: as a file, which nobody has approved yet, and with the recording as its test.

    Args:
        library: Keeps it.
        settings: Have secrets, none of which may be in the file.
        catalog: The servers as they are now.
        recording: The run.
        name: The script's name.
        parameters: Literals of it that become its input, by name.
        written: The script itself and its input in that run, where it was written for one.
        description: Says what it does; empty: its first comment does.
        replace: Whether it may take the place of another script.
        proposed: Whether a client proposes it: there is less room for those.

    Raises:
        BadScript: It cannot be kept.
        ConfigError: No folder of kept scripts is set.
    """

    def kept() -> KeptScript:
        given = dict(parameters or {})
        code = with_parameters(code_of(recording), given) if written is None else written[0]
        if written is not None:
            given = dict(written[1])
        header, schemas = header_of(recording, code, catalog, given, description)
        if any(Redactor(server).text(code) != code for server in settings.servers.values()):
            raise BadScript(
                "The script has a secret of the configuration.", hint="Let a server add it, and run it again."
            )
        if proposed:
            library.check_room()
        return library.write(name, header, code, Trial(recording, given, schemas), replace=replace)

    return await asyncio.to_thread(kept)


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
    name, principal = request["propose"], caller.grantee.principal
    if principal not in may:
        raise InvalidRequest(
            "This client may not propose scripts.", hint="Leave `propose` out, or tell the user."
        )
    try:
        check_name(str(name))
    except BadScript as error:
        raise InvalidRequest(error.message, hint=error.hint) from None
    journal = Journal()
    response = await run(request, caller, journal=journal)
    if not response.ok:
        return response
    try:
        await keep(await asyncio.to_thread(journal.snapshot), name)
        told = Diagnostic(
            severity="info", code="SCRIPT_PROPOSED", message=f"{name} waits for the user's approval."
        )
    except (CellblockError, ValueError) as error:
        told = Diagnostic(
            severity="warning", code="SCRIPT_NOT_PROPOSED", message=f"{name} is not kept: {error}"
        )
    return response.model_copy(update={"diagnostics": [*response.diagnostics, told]})
