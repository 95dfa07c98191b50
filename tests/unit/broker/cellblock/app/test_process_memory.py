"""The first full garbage collection waits for a moment without a run, but not for ever; free memory goes back."""

import asyncio
import gc
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.app import process_memory
from cellblock.app.process_memory import (
    AFTER_SECONDS,
    AGAIN_SECONDS,
    COLLECT_AFTER,
    LONGEST_SECONDS,
    SWITCH_SECONDS,
    collect_when_idle,
)
from cellblock.base.tasks import in_background
from support.virtual_time import virtual_time


@pytest.fixture
def full() -> Iterator[list[int]]:
    """The full collections that have begun, in an automatically quiet collector."""
    begun: list[int] = []

    def heard(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            begun.append(1)

    automatic = gc.isenabled()
    gc.disable()
    gc.callbacks.append(heard)
    try:
        yield begun
    finally:
        gc.callbacks.remove(heard)
        if automatic:
            gc.enable()


def said_by(script: str, *words: str) -> str:
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@virtual_time
async def test_once_in_the_first_idle_moment(full: list[int]) -> None:
    looks = iter([True, True, True, False])
    await collect_when_idle(looks.__next__)
    assert ([*looks], len(full)) == ([], 1)


STARTED = """
import asyncio, gc
from cellblock.app.cli import main

frozen = []
gc.disable()
gc.callbacks.append(lambda phase, info: frozen.append(gc.get_freeze_count() > 10_000))
main.LOADED_SECONDS = 0.0

async def work():
    while not gc.isenabled():
        await asyncio.sleep(0)
    kept = [[] for _ in range(10_000)]
    print(set(frozen))
    return 5

print(asyncio.run(main._ended_by_signals(work())))
"""


def test_in_a_process_of_its_own_what_start_up_made_is_never_collected() -> None:
    assert said_by(STARTED) == "{True}\n5\n"


MODELS = """
import sys
from cellblock.app.cli.main import main

sys.argv = ["cellblock", "status", "--state-dir", sys.argv[1]]
main()
from mcp_types import CallToolResult, PromptMessage

built = [one.__pydantic_complete__ for one in (CallToolResult, PromptMessage)]
CallToolResult.model_validate({"content": []})
print(built, CallToolResult.__pydantic_complete__)
"""


def test_a_command_builds_the_models_of_the_sdk_as_they_are_used(tmp_path: Path) -> None:
    assert said_by(MODELS, str(tmp_path)).splitlines()[-1] == "[False, False] True"


MAPPED = """
import ctypes
from cellblock.app.process_memory import _keep_no_large_blocks

class Info(ctypes.Structure):
    names = "arena free small mapped bytes most fast used left keep"
    _fields_ = [(name, ctypes.c_int) for name in names.split()]

mallinfo = ctypes.CDLL(None).mallinfo
mallinfo.restype = Info
if TOLD:
    _keep_no_large_blocks()
bytes(30_000_000)  # is freed at once, and has the library think that such blocks come and go
before = mallinfo().mapped
block = bytes(4_000_000)
print(mallinfo().mapped == before + 1)
"""


@virtual_time
async def test_not_before_its_time(full: list[int]) -> None:
    async with in_background(collect_when_idle(lambda: False)):
        await asyncio.sleep(AFTER_SECONDS - 0.01)
    assert full == []


@virtual_time
async def test_a_broker_that_is_never_idle_collects_all_the_same(full: list[int]) -> None:
    await collect_when_idle(lambda: True)
    assert len(full) == 1
    assert 0 <= asyncio.get_running_loop().time() - LONGEST_SECONDS <= AGAIN_SECONDS


@virtual_time
async def test_one_that_came_by_itself_is_enough(full: list[int]) -> None:
    collecting = asyncio.ensure_future(collect_when_idle(lambda: False))
    await asyncio.sleep(0)
    gc.collect()
    await collecting
    assert len(full) == 1


# Blocks of 20 kB, of which the last ones stay: what lies below them is free, and glibc keeps it.
GROWN = """
import asyncio, time
from cellblock.app import process_memory
from cellblock.app.process_memory import resident_bytes
from cellblock.app.process_memory import give_back_when_grown

process_memory.RESIDENT_SECONDS = 0.02

async def main():
    looks = asyncio.ensure_future(give_back_when_grown())
    await asyncio.sleep(0)
    blocks = [bytearray(20_000) for _ in range(5_000)]
    for block in blocks:
        block[::4096] = b"x" * len(block[::4096])
    del blocks[:-50]
    grown = resident_bytes()
    until = time.monotonic() + 60
    while TOLD and resident_bytes() > grown - 50_000_000 and time.monotonic() < until:
        await asyncio.sleep(0.01)
    print(grown - resident_bytes() > 50_000_000)
    looks.cancel()

asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("script", [MAPPED, GROWN], ids=["a large block", "small ones"])
def test_what_is_free_goes_back_to_the_system(script: str, told: bool) -> None:
    """Of its own accord, glibc would keep it."""
    assert said_by(script.replace("TOLD", str(told))) == f"{told}\n"


def test_a_process_of_the_brokers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    before, threshold = sys.getswitchinterval(), gc.get_threshold()
    monkeypatch.setattr(process_memory, "is_own", False)
    try:
        # Commands that other tests run in this process may have set it.
        sys.setswitchinterval(5 * SWITCH_SECONDS)
        process_memory.own_process()
        assert process_memory.is_own
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
        assert gc.get_threshold()[0] == COLLECT_AFTER
    finally:
        sys.setswitchinterval(before)
        gc.set_threshold(*threshold)
