"""The library has what people review: the files of kept scripts in `scripts.dir`, and the recordings that test them;
and the versions that a person has let in here: their texts, in the state directory, are what runs.

A pull, an editor or an agent that changes a file changes nothing that runs. A broker offers them as a server's tools; a
call of one is a run of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgpack

from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.state_keys import StateKeys, keys_of
from cellblock.base.store import FileShelf, Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.tasks import in_background
from cellblock.record.recording import Recording
from cellblock.record.scripts.script_file import (
    MAX_BYTES,
    SUFFIX,
    BadScript,
    Header,
    KeptScript,
    check_name,
    format_script,
    read_script,
)
from cellblock.run.children import Callee, Children
from cellblock.run.response import RunResponse
from cellblock.tools.catalog.model import SCRIPTS, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import SCRIPTS_SERVER
from cellblock.tools.upstream.registry import Registry
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import read_private, write_private

RECORDINGS: Final = "script-recordings"
"""Names their folder in the state directory."""

MAX_RECORDING_BYTES: Final = 64 * 1024 * 1024
"""Bounds the recording of a kept script with what it is tested against."""

MAX_WAITING: Final = 50
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Bound the scripts that wait for a person, and all recordings, before clients may propose no more."""

LOCK_SECONDS: Final = 10.0
"""Bounds the wait for another process that keeps a script; it takes milliseconds."""

logger = logging.getLogger("cellblock.scripts")

LOOK_SECONDS: Final = 2.0
"""Separates two looks at what is approved; a call of a script looks for itself."""

MAX_SCRIPTS: Final = 500
"""Bounds the approved scripts that are served; each is a function that models are told of."""


class Trial(NamedTuple):
    """Holds what a kept script is tested with; private data may be in it.

    Args:
        recording: The run that it was made from.
        input: Its input then.
        tools: What was said of its tools then, as `said_of` has it, by `server.tool`.
    """

    recording: Recording
    input: dict[str, Any]
    tools: dict[str, list[Any]]


class Library:
    """Reads and writes kept scripts. All of it blocks, for a disk or a database.

    Args:
        store: Has the approved versions.
        auth: Says where the key of the recordings is.
        folder: Where the files are; None: nothing can be kept, and what is approved runs.
        state_dir: Has the recordings, which are too large for what brokers share.

    Attributes:
        approvals: The approved versions.
    """

    def __init__(self, store: Store, auth: AuthSettings, folder: Path | None, state_dir: Path) -> None:
        self._store, self._auth = store, auth
        self.folder: Final = folder
        self.approvals: Final = Approvals(store)
        self._recordings = FileShelf(state_dir / RECORDINGS, MAX_RECORDING_BYTES)

    def files(self) -> list[str]:
        """Returns the names that files in the folder have; without a folder there are none. Raises OSError."""
        found = () if self.folder is None else self.folder.glob(f"*{SUFFIX}")
        return sorted(file.name.removesuffix(SUFFIX) for file in found)

    def names(self) -> list[str]:
        """Returns the names of all scripts, those without a file or an approval, too."""
        return sorted({*self.files(), *self.approvals.all()})

    def current(self, name: str) -> KeptScript:
        """Returns the file of a script, or where there is none the approved version. Raises BadScript."""
        approval = None if name in self.files() else self.approvals.get(name)
        return self.file(name) if approval is None else approval.script

    def file(self, name: str) -> KeptScript:
        """Reads a file, never through a link.

        Raises:
            BadScript: There is none, or it is no kept script's.
        """
        check_name(name)
        try:
            with Folder.named(self._dir()) as folder:
                return read_script(name, read_private(folder, name + SUFFIX, MAX_BYTES, secret=False))
        except FileNotFoundError:
            raise self.missing(name) from None
        except OSError as error:
            raise failed(f"The kept script {name} cannot be read", error) from None

    def missing(self, name: str) -> BadScript:
        """Makes the error for a name that no file has."""
        near = nearest_names(name, [one for one in self.names() if one != name], 1)
        return BadScript(
            f"There is no kept script {name} in {self.folder}.",
            hint=did_you_mean(near, "`cellblock scripts list` shows them."),
        )

    def write(self, name: str, header: Header, code: str, trial: Trial, *, replace: bool) -> KeptScript:
        """Keeps a script: its recording first, which the file names, so that no file has another's.

        Raises:
            BadScript: The name is taken, or the script cannot be kept.
        """
        data = [trial.recording.pack(), trial.input, trial.tools]
        packed = cast("bytes", msgpack.packb(data))  # pyright: ignore[reportUnknownMemberType]
        named = sha256(packed).hexdigest()
        script = format_script(name, header.model_copy(update={"recording": named}), code)
        keys = StateKeys(keys_of(self._store, self._auth))
        if len(sealed := keys.sealed((RECORDINGS, named), packed)) > MAX_RECORDING_BYTES:
            raise BadScript(f"The recording of {name} is too large to be kept.", hint="Keep a smaller run.")
        try:
            with self._store.lock("scripts", LOCK_SECONDS), Folder.named(self._dir()) as folder:
                if not replace and folder.look(name + SUFFIX) is not None:
                    raise BadScript(
                        f"There is a kept script {name} already.", hint="--replace writes over it."
                    )
                self._recordings.write(named, sealed, replace=True)
                write_private(folder, name + SUFFIX, script.text.encode(), replace=replace, mode=0o644)
        except (OSError, StoreError) as error:
            raise failed(f"{name} is not kept", error) from None
        return script

    def check_room(self) -> None:
        """Raises BadScript: So much waits for a person that no client may propose more. Recordings that no script names
        any more make room first."""
        approved = {name: one.script for name, one in self.approvals.all().items()}
        kept = [*approved.values()]
        for name in self.files():
            with contextlib.suppress(BadScript):
                kept.append(self.file(name))
        waiting, named = (
            sum(approved.get(one.name) != one for one in kept),
            {one.header.recording for one in kept},
        )
        try:
            sizes = {
                name: Path(self._recordings.where(name)).stat().st_size for name in self._recordings.names()
            }
            for name in sizes.keys() - named if sum(sizes.values()) > MAX_WAITING_BYTES else ():
                self._recordings.remove(name)
                del sizes[name]
        except OSError as error:
            raise failed("The recordings cannot be looked at", error) from None
        if waiting >= MAX_WAITING or sum(sizes.values()) > MAX_WAITING_BYTES:
            raise BadScript(
                f"{waiting} scripts wait for the user already.",
                hint="The user approves or removes some first.",
            )

    def trial(self, script: KeptScript) -> Trial | None:
        """Returns what a script is tested with; None where this machine has no recording of it.

        Raises:
            BadScript: It cannot be read, or was changed.
            UnreadableRecording: Another release has made it.
        """
        if script.header.recording is None:
            return None
        try:
            sealed = self._recordings.read(script.header.recording)
            keys = StateKeys(keys_of(self._store, self._auth, make=False))
            packed = keys.opened((RECORDINGS, script.header.recording), sealed)
        except FileNotFoundError:
            return None
        except (OSError, StoreError) as error:
            raise failed(f"The recording of {script.name} cannot be read", error) from None
        # As it was written here: it was sealed.
        recording, given, tools = cast("tuple[bytes, Any, Any]", msgpack.unpackb(packed))  # pyright: ignore[reportUnknownMemberType]
        return Trial(Recording.unpack(recording), given, tools)

    # ---- inside ---------------------------------------------------------------------------------------

    def _dir(self) -> Path:
        if self.folder is None:
            raise ConfigError(
                "No folder of kept scripts is set.", hint='Set "cellblock": {"scripts": {"dir": "scripts"}}.'
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


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
