"""The versions of kept scripts that a person has let in here: their texts, in the state directory, are what runs.

A pull, an editor or an agent that changes a file changes nothing that runs. A broker offers them as a server's tools;
a call of one is a run of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from cellblock.base.database import StoreError
from cellblock.base.store import Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import in_background
from cellblock.record.scripts.script_file import MAX_BYTES, BadScript, KeptScript, check_name, read_script
from cellblock.run.children import Callee, Children
from cellblock.run.response import RunResponse
from cellblock.tools.catalog.model import SCRIPTS, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import SCRIPTS_SERVER
from cellblock.tools.upstream.registry import Registry

logger = logging.getLogger("cellblock.scripts")

LOOK_SECONDS: Final = 2.0
"""Separates two looks at what is approved; a call of a script looks for itself."""

MAX_SCRIPTS: Final = 500
"""Bounds the approved scripts that are served; each is a function that models are told of."""


class Approval(NamedTuple):
    """Says who has let a version in.

    Args:
        script: The version.
        by: The user of this machine who did.
        at: When, Unix time in seconds.
        before: The digest of the version that it took the place of; empty: there was none.
    """

    script: KeptScript
    by: str
    at: float
    before: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """Says so as JSON data."""
        return {"digest": self.script.digest, "by": self.by, "at": self.at, "before": self.before}


class Approvals:
    """Reads and writes approvals. All of it blocks, for a disk or a database.

    Args:
        store: Has them.
    """

    def __init__(self, store: Store) -> None:
        self._shelf = store.shelf("scripts", 2 * MAX_BYTES)

    def approve(self, script: KeptScript) -> Approval:
        """Lets a version in, which runs from now on.

        Raises:
            BadScript: It cannot be written, or somebody else lets one in, or takes one back, at the same time.
        """
        import psutil

        stamp, before = self._shelf.stamp(script.name), self.get(script.name)
        user = psutil.Process().username()
        made = Approval(script, user, time.time(), "" if before is None else before.script.digest)
        data = {"format": 1, "name": script.name, "text": script.text, **made.told}
        try:
            written = self._shelf.write(
                script.name, json.dumps(data).encode(), replace=stamp is not None, only=stamp
            )
        except OSError as error:
            raise failed(f"{script.name} is not approved", error) from None
        if not written:
            raise BadScript(
                f"The approval of {script.name} has changed meanwhile.",
                hint="Look at it, and approve it again.",
            )
        return made

    def remove(self, name: str) -> None:
        """Takes the approval of a script back; its file stays. Raises BadScript: There is none, or it stays."""
        try:
            self._shelf.remove(check_name(name))
        except FileNotFoundError:
            raise BadScript(
                f"No version of {name} is approved.",
                hint=did_you_mean(
                    nearest_names(name, self.all(), 1), "`cellblock scripts list` shows those that are."
                ),
            ) from None
        except OSError as error:
            raise failed(f"The approval of {name} cannot be removed", error) from None

    def script(self, name: str) -> KeptScript:
        """Returns the version of a script that runs. Raises BadScript: None is let in."""
        if (approval := self.get(name)) is None:
            raise BadScript(
                f"No version of {name} is approved here.",
                hint=f"The user lets one in: cellblock scripts approve {name}",
            )
        return approval.script

    def get(self, name: str) -> Approval | None:
        """Returns who has let which version of a script in; None: none is in. A damaged entry lets nothing in. Raises
        BadScript: No script is called so."""
        return self._read(check_name(name))

    def _read(self, name: str) -> Approval | None:
        try:
            found: Any = json.loads(self._shelf.read(name))
            script = read_script(name, found["text"].encode())
            if found["name"] != name or script.digest != found["digest"]:
                raise ValueError("its digest is not that of its text")
            return Approval(script, str(found["by"]), float(found["at"]), str(found["before"]))
        except FileNotFoundError:
            return None
        except (
            BadScript,
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            logger.warning("the approval of the script %s does not count: %s", name, error)
            return None

    def all(self) -> dict[str, Approval]:
        """Returns all approved versions, by name. Raises BadScript."""
        try:
            found = {name: self._read(name) for name in self._shelf.names()[:MAX_SCRIPTS]}
        except OSError as error:
            raise failed("The approved scripts cannot be read", error) from None
        return {name: approval for name, approval in found.items() if approval is not None}

    def stamps(self) -> dict[str, object]:
        """Returns what tells one state of the approvals from another. Raises OSError."""
        self._shelf.wait()
        return {name: self._shelf.stamp(name) for name in self._shelf.names()}


def failed(what: str, error: OSError | StoreError) -> BadScript:
    """Makes the error that a disk, or a database, has kept something from being done."""
    why = error.strerror if isinstance(error, OSError) else None
    return BadScript(f"{what}: {why or error}.", hint="Check scripts.dir, --state-dir, and their disks.")


def entry_of(approvals: Mapping[str, Approval]) -> ServerEntry:
    """Makes the entry of the server whose tools are the approved scripts."""
    tools = tuple(
        ToolEntry(
            name,
            name,
            header.description,
            {"readOnlyHint": True} if header.grants.read_only else None,
            header.input,
            None if header.output is True else header.output,
        )
        for name, header in ((name, approval.script.header) for name, approval in approvals.items())
    )
    return ServerEntry(
        server_id=SCRIPTS_SERVER,
        server_name="Kept scripts",
        config_name=SCRIPTS,
        description="Scripts that were kept, and approved by the user. Each runs in a process of its own.",
        tools=tools,
        by_export={tool.export_name: tool for tool in tools},
    )


async def serve_scripts(
    approvals: Approvals,
    registry: Registry,
    run: Callable[..., Awaitable[RunResponse]],
    places: Callable[[], int],
    stack: contextlib.AsyncExitStack,
) -> None:
    """Offers the scripts that are approved as a server, and follows what a person approves until `stack` ends that.

    Args:
        approvals: Has them.
        registry: Offers them.
        run: As for `Children`.
        places: Gives the places of the pool.
        stack: Ends it.
    """

    def find(name: str, given: Mapping[str, Any]) -> Callee:
        script = approvals.script(name)
        return script.with_input(given), script.grants, script.header.output

    children = Children(run, find, places)
    seen: dict[str, object] = {}

    async def look() -> None:
        nonlocal seen
        try:
            stamps = await asyncio.to_thread(approvals.stamps)
            if stamps != seen:
                registry.offer_scripts(entry_of(await asyncio.to_thread(approvals.all)), children.call)
                seen = stamps
        except (OSError, BadScript) as error:
            logger.warning("the kept scripts cannot be looked at: %s", error)

    async def follow() -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await look()

    await look()
    await stack.enter_async_context(in_background(follow(), name="kept scripts"))
