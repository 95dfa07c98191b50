"""Testing has what a test of an agent's script needs: to record a run, and to run a script against a recording.

A recording in a repository stands for the servers: no server, no network and no credential is needed to replay it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cellblock.app.broker import Broker
from cellblock.app.replay import Replayed, is_well, replay
from cellblock.base.errors import CellblockError
from cellblock.record.journal import Journal
from cellblock.record.recording import RecordedCall, Recording, UnreadableRecording, read_file, write
from cellblock.run.request import request_of
from cellblock.run.response import RunResponse
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import write_private

__all__: Final = [
    "RecordedCall",
    "Recording",
    "Replayed",
    "UnreadableRecording",
    "is_well",
    "read_recording",
    "record",
    "replay",
    "write_recording",
]


async def record(
    broker: Broker, code: str, *, requested_capabilities: Sequence[str] | None = None, **limits: Any
) -> tuple[RunResponse, Recording]:
    """Runs a script, and gives its response and its recording.

    Args:
        broker: A running one, with the servers and tools of the script.
        code: JavaScript or TypeScript, an ES module.
        requested_capabilities: As for `Broker.run`.
        limits: Of the run, such as `timeoutMs=1000`.

    Raises:
        CellblockError: The run was not started, or is too large to be recorded.
        InvalidRequest: The request is malformed.
    """
    journal = Journal()
    request = request_of(code, limits=limits or None, requestedCapabilities=requested_capabilities)
    response = (await broker.run_request(request, journal=journal)).decoded()
    try:
        return response, journal.snapshot()
    except ValueError as error:
        first = next((found.message for found in response.diagnostics), "")
        raise CellblockError(
            f"Nothing is recorded: {error}. {first}".strip(), hint="Correct the script."
        ) from None


def write_recording(recording: Recording, path: str | os.PathLike[str]) -> None:
    """Writes a recording into a file that `cellblock replay` reads, too.

    Nothing is redacted, and so the file has mode 0600, also where there was one. A link is not followed.

    Raises:
        OSError: It cannot be written.
    """
    file = Path(path).absolute()
    with Folder.named(file.parent) as folder:
        write_private(folder, file.name, write(recording).encode())


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Reads a file that `cellblock record` or `write_recording` has made. Raises OSError, UnreadableRecording."""
    return read_file(Path(path))
