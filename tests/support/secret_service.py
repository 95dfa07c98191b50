"""A real Secret Service for tests: a session bus and a GNOME keyring of their own, the machine's or unpacked."""

import contextlib
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.processes import owned_process
from support.waits import until, within

UNPACKED = Path(__file__).parents[2] / ".servers" / "keyring" / "usr"
"""Is where scripts/_servers.sh unpacks what the machine lacks."""

LIBRARIES = os.pathsep.join(map(str, UNPACKED.glob("lib/*-linux-gnu*")))


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=UNPACKED / "bin")


BUS, KEYRING = _program("dbus-daemon"), _program("gnome-keyring-daemon")

needs_secret_service = pytest.mark.skipif(
    not (BUS and KEYRING) and os.environ.get("CELLBLOCK_KEYRING") != "required",
    reason="no dbus-daemon or gnome-keyring-daemon on this machine",
)


@contextlib.asynccontextmanager
async def secret_service(folder: Path) -> AsyncGenerator[dict[str, str]]:
    """An unlocked keyring; gives the environment in which it is found. Nothing of it is left."""
    assert BUS and KEYRING, "install gnome-keyring and dbus-daemon"
    (folder / "data" / "keyrings").mkdir(parents=True)
    libraries = {"LD_LIBRARY_PATH": LIBRARIES} if LIBRARIES else {}
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "XDG_RUNTIME_DIR": str(folder)}
    async with owned_process(
        *(BUS, "--session", "--nofork", "--print-address"),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=DEVNULL,
        env={**os.environ, **libraries},
    ) as bus:
        address = (await within(bus.stdout.readline())).decode().strip()
        environment = {**home, "DBUS_SESSION_BUS_ADDRESS": address}
        async with owned_process(
            *(KEYRING, "--foreground", "--unlock", "--components=secrets"),
            stdin=PIPE,
            stdout=DEVNULL,
            stderr=DEVNULL,
            env={**os.environ, **environment, **libraries},
        ) as ring:
            ring.stdin.write(b"password")
            ring.stdin.close()
            await until(lambda: (folder / "data/keyrings/login.keyring").exists(), "the keyring is made")
            yield environment
