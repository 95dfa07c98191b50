"""Prints the files of broker and worker host that one run enters, in the order in which it first enters them.

Both processes note the first call into each file. Their clock is the same one, so the two lists are one list.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from benchmarks.harness import BOUND_SECONDS, ROOT, broker, parser, warmed

SCRIPT = 'import { add } from "@codemode/servers/local"; globalThis.__codemode_result__ = await add({ a: 1, b: 2 });'


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Entered:
    """Notes when each file is first entered, in every thread of this process."""

    def __init__(self) -> None:
        self.files: dict[str, float] = {}
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self.files.setdefault(frame.f_code.co_filename, time.monotonic())


def host(into: Path) -> None:
    """Is a worker host that writes down its files at each signal USR1."""
    entered = Entered()

    def write(*_: Any) -> None:
        """Writes what was noted since the last time."""
        new = into.with_suffix(".new")
        new.write_text(json.dumps(entered.files))
        new.rename(into)
        entered.files.clear()

    signal.signal(signal.SIGUSR1, write)
    sys.argv = sys.argv[4:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def written(process: psutil.Process, into: Path) -> dict[str, float]:
    """Asks the host for its files, and waits for them."""
    into.unlink(missing_ok=True)
    process.send_signal(signal.SIGUSR1)
    end = time.monotonic() + BOUND_SECONDS
    while not into.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return json.loads(into.read_text())


async def main(folder: Path) -> None:
    """Starts a broker whose host is `host`, runs the script, and prints the files."""
    into, wrapper = folder / "files.json", folder / "python"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT / "scripts"}" exec "{sys.executable}" "{__file__}" --host "{into}" "$@"\n'
    )
    wrapper.chmod(0o700)
    sys.executable = str(wrapper)
    entered = Entered()
    async with broker(tools=[add]) as running:
        await warmed(running)
        [process] = [child for child in psutil.Process().children() if str(into) in child.cmdline()]
        await asyncio.to_thread(written, process, into)
        entered.files.clear()
        response = await running.run(SCRIPT)
        assert response.result == {"result": 3}, response
        both = entered.files | await asyncio.to_thread(written, process, into)
    for path in map(Path, sorted(both, key=both.__getitem__)):
        if path.is_relative_to(ROOT / "broker") or path.is_relative_to(ROOT / "worker_runtime"):
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--host"]:
        host(Path(sys.argv[2]))
    parser("run_files", __doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="run-files-") as own:
        asyncio.run(main(Path(own)))
