"""Free memory between what stays goes back to the system, as long as somebody looks."""

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")

# Blocks of 20 kB, of which the last ones stay: what lies below them is free, and glibc keeps it.
GROWN = """
import asyncio, time
from cellblock.app.process_memory import resident_bytes
from cellblock.app import process_memory
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
    while STARTED and resident_bytes() > grown - 50_000_000 and time.monotonic() < until:
        await asyncio.sleep(0.01)
    print(grown - resident_bytes() > 50_000_000)
    looks.cancel()

asyncio.run(main())
"""


@pytest.mark.parametrize("started", [False, True])
def test_what_is_free_goes_back(started: bool) -> None:
    """Of its own accord, glibc would keep it."""
    script = GROWN.replace("STARTED", str(started))
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{started}\n"
