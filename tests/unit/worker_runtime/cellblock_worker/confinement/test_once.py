"""One process from its start to its end: what it reads, what it says, and what becomes of one that stays."""

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest

from cellblock_worker.confinement.confinement import Launch
from cellblock_worker.confinement.selftest import run_once
from cellblock_worker.launch.spawning import REAP_BOUND_SECONDS
from support.processes import gone
from support.waits import until

BOUND = 20.0


def shell(script: str) -> Launch:
    return Launch(["/bin/sh", "-c", script])


async def test_it_reads_what_it_is_given_and_says_how_it_ended() -> None:
    done = await run_once(shell("cat; echo '  bad luck ' >&2; exit 3"), BOUND, b"given")
    assert (done.returncode, done.output, done.stderr_text) == (3, b"given", "bad luck")


async def test_nothing_given_is_an_end_of_input() -> None:
    assert (await run_once(shell("cat; echo end"), BOUND)).output == b"end\n"


async def test_past_its_time_it_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await run_once(shell(f"echo $$ > {tmp_path}/pid; sleep 600 & wait"), 0.5)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_caller_leaves_none_behind_and_what_has_left_its_group_ends_with_its_input(
    tmp_path: Path,
) -> None:
    # As a Deno does whose bubblewrap is killed before it has asked to die with it.
    before, file = psutil.Process().children(), tmp_path / "pid"
    child = f"setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; sleep 0.5; exec cat' <&3 &"
    running = asyncio.create_task(run_once(shell(f"exec 3<&0; {child} sleep 600"), BOUND, b"x" * (1 << 20)))
    await until(file.exists, "a child")
    left = psutil.Process(int(file.read_text()))
    since = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - since < REAP_BOUND_SECONDS
    assert psutil.Process().children() == before, "none of its own is left behind"
    await gone([left])


async def test_its_descriptors_are_closed_even_when_it_cannot_be_started() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="no-such-program"):
        await run_once(Launch(["/no-such-program"], (reader,), wrapped=True), BOUND)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(reader)
