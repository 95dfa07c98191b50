"""The library has what people review: the files of kept scripts in `scripts.dir`, and the recordings that test them."""

from __future__ import annotations

import contextlib
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
from cellblock.record.recording import Recording
from cellblock.record.scripts.approvals import Approvals, failed
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
            sizes = {name: self._recordings.path(name).stat().st_size for name in self._recordings.names()}
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
