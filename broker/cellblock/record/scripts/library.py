"""The library knows the kept scripts: their files in `scripts.dir`, and the versions that a person has let in here.

What runs is the approved text, which the state directory has, and never the file: a pull, an editor or an agent changes
nothing that runs. The files are what people review.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec

from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.settings.auth import AuthSettings
from cellblock.base.state_keys import StateKeys
from cellblock.base.store import FileShelf, Store
from cellblock.record.journal_key import keys_of
from cellblock.record.recording import Recording, UnreadableRecording
from cellblock.record.scripts.script_file import (
    MAX_BYTES,
    SUFFIX,
    BadScript,
    Header,
    KeptScript,
    check_name,
    digest_of,
    format_script,
    read_script,
)
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import SCRIPTS_SPECIFIER
from cellblock.tools.catalog.naming import SCRIPTS_SERVER
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import read_private, write_private

logger = logging.getLogger("cellblock.scripts")

APPROVED: Final = "scripts"
RECORDINGS: Final = "script-recordings"
"""Name the folders in the state directory."""

MAX_RECORDING_BYTES: Final = 64 * 1024 * 1024
"""Bounds the recording of a kept script with what it is tested against."""

MAX_WAITING: Final = 50
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
"""Bound the scripts that wait for a person, and all recordings, before clients may propose no more."""

LOCK_SECONDS: Final = 10.0
"""Bounds the wait for another process that keeps or removes a script; it takes milliseconds."""

MAX_SCRIPTS: Final = 500
"""Bounds the approved scripts that are served; each is a function that models are told of."""

FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True)
class Approval:
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


@dataclass(frozen=True, slots=True)
class Trial:
    """Holds what a kept script is tested with; private data may be in it.

    Args:
        recording: The run that it was made from.
        input: Its input then.
        tools: The schemas of its tools then, `[input, output]` by `server.tool`.
    """

    recording: Recording
    input: dict[str, Any]
    tools: dict[str, list[Any]]

    def pack(self) -> bytes:
        """Encodes it, for a store."""
        return msgspec.msgpack.encode([self.recording.pack(), self.input, self.tools])

    @classmethod
    def unpack(cls, data: bytes) -> Trial:
        """Decodes what `pack` has made. Raises UnreadableRecording."""
        try:
            packed, given, tools = msgspec.msgpack.decode(data)
        except Exception as error:
            raise UnreadableRecording("A kept recording is damaged.", hint="Keep the script anew.") from error
        return cls(Recording.unpack(packed), given, tools)


class Library:
    """Reads and writes kept scripts. All of it blocks, for a disk or a database.

    Args:
        store: Has the approved versions.
        auth: Says where the key of the recordings is.
        folder: Where the files are; None: nothing can be kept, and what is approved runs.
        state_dir: Has the recordings, which are too large for what brokers share.
    """

    def __init__(self, store: Store, auth: AuthSettings, folder: Path | None, state_dir: Path) -> None:
        self._store, self._auth = store, auth
        self.folder: Final = folder
        self._approved = store.shelf(APPROVED, 2 * MAX_BYTES)
        self._recordings = FileShelf(state_dir / RECORDINGS, MAX_RECORDING_BYTES)

    # ---- files ----------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        """Returns the names that files in the folder have; without a folder there are none. Raises OSError."""
        if self.folder is None or not self.folder.is_dir():
            return []
        return sorted(file.name.removesuffix(SUFFIX) for file in self.folder.glob(f"*{SUFFIX}"))

    def names(self) -> list[str]:
        """Returns the names of all scripts, those without a file or an approval, too."""
        return sorted({*self.files(), *self.approvals()})

    def current(self, name: str) -> KeptScript:
        """Returns the file of a script, or where there is none the approved version. Raises BadScript."""
        approval = None if name in self.files() else self.approved(name)
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
            raise BadScript(
                f"There is no kept script {name} in {self.folder}.",
                hint="`cellblock scripts list` shows them.",
            ) from None
        except OSError as error:
            why = error if isinstance(error, InTheWay) else error.strerror
            raise BadScript(
                f"The kept script {name} cannot be read: {why}.", hint="Correct the file."
            ) from None

    def write(
        self, name: str, header: Header, code: str, trial: Trial | None, *, replace: bool
    ) -> KeptScript:
        """Keeps a script: its recording first, which the file names, so that no file has another's.

        Raises:
            BadScript: The name is taken, or the script cannot be kept.
        """
        check_name(name)
        sealed = b""
        if trial is not None:
            packed = trial.pack()
            header = header.model_copy(update={"recording": sha256(packed).hexdigest()})
            sealed = self._keys(make=True).sealed((RECORDINGS, header.recording or ""), packed)
        if len(sealed) > MAX_RECORDING_BYTES:
            raise BadScript(f"The recording of {name} is too large to be kept.", hint="Keep a smaller run.")
        script = format_script(name, header, code)
        try:
            with self._store.lock("scripts", LOCK_SECONDS), Folder.named(self._dir()) as folder:
                if not replace and folder.look(name + SUFFIX) is not None:
                    raise BadScript(
                        f"There is a kept script {name} already.", hint="--replace writes over it."
                    )
                if header.recording is not None:
                    self._recordings.write(header.recording, sealed, replace=True)
                write_private(folder, name + SUFFIX, script.text.encode(), replace=replace, mode=FILE_MODE)
        except (OSError, StoreError) as error:
            raise _failed(f"{name} is not kept", error) from None
        return script

    def check_room(self) -> None:
        """Raises BadScript: So much waits for a person that no client may propose more. Recordings that no script names
        any more make room first."""
        approved = {name: one.script for name, one in self.approvals().items()}
        waiting, named = 0, {script.header.recording for script in approved.values()}
        for name in self.files():
            with contextlib.suppress(BadScript):
                script = self.file(name)
                named.add(script.header.recording)
                waiting += name not in approved or approved[name].digest != script.digest
        try:
            sizes = {name: self._recordings.path(name).stat().st_size for name in self._recordings.names()}
            for name in sizes.keys() - named if sum(sizes.values()) > MAX_WAITING_BYTES else ():
                self._recordings.remove(name)
                del sizes[name]
        except OSError as error:
            raise _failed("The recordings cannot be looked at", error) from None
        if waiting >= MAX_WAITING or sum(sizes.values()) > MAX_WAITING_BYTES:
            raise BadScript(
                f"{waiting} scripts wait for the user already.",
                hint="The user approves or removes some first.",
            )

    def remove(self, name: str) -> bool:
        """Takes back the approval of a script; its file stays. Says whether there was one. Raises BadScript."""
        check_name(name)
        try:
            self._approved.remove(name)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(f"The approval of {name} cannot be removed", error) from None
        return True

    # ---- approvals ------------------------------------------------------------------------------------

    def approve(self, script: KeptScript) -> Approval:
        """Lets a version in, which runs from now on.

        Raises:
            BadScript: It cannot be written, or somebody else lets one in, or takes one back, at the same time.
        """
        stamp, before = self._approved.stamp(script.name), self.approved(script.name)
        made = Approval(script, _user(), time.time(), "" if before is None else before.script.digest)
        data = {
            "format": 1,
            "name": script.name,
            "digest": script.digest,
            "text": script.text,
            "by": made.by,
            "at": made.at,
            "before": made.before,
        }
        try:
            written = self._approved.write(
                script.name, json.dumps(data).encode(), replace=stamp is not None, only=stamp
            )
        except OSError as error:
            raise _failed(f"{script.name} is not approved", error) from None
        if not written:
            raise BadScript(
                f"The approval of {script.name} has changed meanwhile.",
                hint="Look at it, and approve it again.",
            )
        return made

    def approved(self, name: str) -> Approval | None:
        """Returns who has let which version of a script in; None: none is in. A damaged entry lets nothing in."""
        check_name(name)
        try:
            found: Any = json.loads(self._approved.read(name))
            if found["name"] != name or digest_of(found["text"]) != found["digest"]:
                raise ValueError("its digest is not that of its text")
            script = read_script(name, found["text"].encode())
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

    def approvals(self) -> dict[str, Approval]:
        """Returns all approved versions, by name. Raises BadScript."""
        try:
            names = self._approved.names()
        except OSError as error:
            raise _failed("The approved scripts cannot be read", error) from None
        found: dict[str, Approval] = {}
        for name in names[:MAX_SCRIPTS]:
            with contextlib.suppress(BadScript):
                if (approval := self.approved(name)) is not None:
                    found[name] = approval
        return found

    def stamps(self) -> dict[str, object]:
        """Returns what tells one state of the approvals from another. Raises OSError."""
        self._approved.wait()
        return {name: self._approved.stamp(name) for name in self._approved.names()}

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
            packed = self._keys(make=False).opened((RECORDINGS, script.header.recording), sealed)
        except FileNotFoundError:
            return None
        except (OSError, StoreError) as error:
            raise _failed(f"The recording of {script.name} cannot be read", error) from None
        return Trial.unpack(packed)

    # ---- inside ---------------------------------------------------------------------------------------

    def _keys(self, *, make: bool) -> StateKeys:
        return StateKeys(keys_of(self._store, self._auth, make=make))

    def _dir(self) -> Path:
        if self.folder is None:
            raise ConfigError(
                "No folder of kept scripts is set.", hint='Set "cellblock": {"scripts": {"dir": "scripts"}}.'
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


def _failed(what: str, error: OSError | StoreError) -> BadScript:
    why = error.strerror if isinstance(error, OSError) else None
    return BadScript(f"{what}: {why or error}.", hint="Check scripts.dir, --state-dir, and their disks.")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "?"


def entry_of(approvals: Mapping[str, Approval]) -> ServerEntry:
    """Makes the entry of the server whose tools are the approved scripts."""
    tools = tuple(_tool(approval.script) for approval in approvals.values())
    return ServerEntry(
        server_id=SCRIPTS_SERVER,
        server_name="Kept scripts",
        config_name=SCRIPTS_SPECIFIER,
        description="Scripts that were kept, and approved by the user. Each runs in a process of its own.",
        tools=tools,
        by_export={tool.export_name: tool for tool in tools},
    )


def _tool(script: KeptScript) -> ToolEntry:
    header = script.header
    return ToolEntry(
        script.name,
        script.name,
        header.description,
        {"readOnlyHint": True} if header.grants.read_only else None,
        header.input,
        None if header.output is True else header.output,
    )
