"""A real Secret Service for tests: a session bus and a GNOME keyring of their own, where they are installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.waits import until, within

BUS, KEYRING = shutil.which("dbus-daemon"), shutil.which("gnome-keyring-daemon")

needs_secret_service = pytest.mark.skipif(
    not (BUS and KEYRING), reason="no dbus-daemon or gnome-keyring-daemon on this machine"
)


@contextlib.asynccontextmanager
async def secret_service(folder: Path) -> AsyncGenerator[dict[str, str]]:
    """An unlocked keyring; gives the environment in which it is found. Nothing of it is left."""
    assert BUS and KEYRING
    (folder / "data" / "keyrings").mkdir(parents=True)
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "XDG_RUNTIME_DIR": str(folder)}
    bus = await asyncio.create_subprocess_exec(
        *(BUS, "--session", "--nofork", "--print-address"), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL
    )
    ring = None
    try:
        assert bus.stdout is not None
        address = (await within(bus.stdout.readline())).decode().strip()
        environment = {**home, "DBUS_SESSION_BUS_ADDRESS": address}
        ring = await asyncio.create_subprocess_exec(
            *(KEYRING, "--foreground", "--unlock", "--components=secrets"),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            env={**os.environ, **environment},
        )
        assert ring.stdin is not None
        ring.stdin.write(b"password")
        ring.stdin.close()
        await until(lambda: (folder / "data/keyrings/login.keyring").exists(), "the keyring is made")
        yield environment
    finally:
        for process in (ring, bus):
            if process is not None:
                process.kill()
                await process.wait()
