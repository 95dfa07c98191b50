"""Testing_plugin gives pytest the fixture `cellrun`, with which a test replays a recording.

pytest imports it wherever Cellblock is installed: all that takes time is imported by the tests that use it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from cellblock.app.replay import Replayed
    from cellblock.record.recording import Recording

MAX_CHARS: Final = 400
"""Bounds what is shown of one value that differs."""


@pytest.fixture
def cellrun(request: pytest.FixtureRequest) -> Callable[..., Replayed]:
    """Gives a function that replays a recording, and fails the test where it does not come to the recorded response.

    Its first argument is a file, from the test's own folder, or a `Recording`. `script=` is the text of another script:
    the test fails where that fails. `until=` is the number of the call to stop before. It gives what came of it.
    """

    def replayed(
        recording: Recording | str | os.PathLike[str], *, script: str | None = None, until: int | None = None
    ) -> Replayed:
        from cellblock.testing import is_well, read_recording, replay

        __tracebackhide__ = True
        name = "the recording"
        if isinstance(recording, str | os.PathLike):
            name = os.fspath(recording)
            recording = read_recording(request.path.parent / recording)
        # A thread of its own: an async test has a loop already.
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(asyncio.run, replay(recording, script=script, until=until)).result()
        if not is_well(found, recording):
            pytest.fail(_said(found, name, script), pytrace=False)
        return found

    return replayed


def _said(found: Replayed, name: str, script: str | None) -> str:
    what = "does not come to the recorded response" if script is None else "fails with the other script"
    lines = [f"{name} {what}:"]
    for one in found.differences or ():
        lines += [
            f"  {one['path']}",
            *(f"    {side}: {_short(one[side])}" for side in ("recorded", "replayed")),
        ]
    for told in found.response.diagnostics:
        if told.severity == "error":
            place = "" if told.path is None else f" at {told.path}"
            lines.append(f"  {told.code}{place}: {told.message} {told.hint or ''}".rstrip())
    if found.reason is not None:
        lines.append(f"  {found.reason}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"
