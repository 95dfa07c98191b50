"""A login in a real Secret Service: a session bus and a GNOME keyring of the test's own, where they are installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from support.oauth_world import world
from support.waits import until, within

BUS, KEYRING = shutil.which("dbus-daemon"), shutil.which("gnome-keyring-daemon")


@contextlib.asynccontextmanager
async def secret_service(folder: Path) -> AsyncGenerator[dict[str, str]]:
    """An unlocked keyring; gives the environment in which it is found. Nothing of it is left."""
    assert BUS and KEYRING
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


@pytest.mark.skipif(not (BUS and KEYRING), reason="no dbus-daemon or gnome-keyring-daemon on this machine")
async def test_a_login_is_kept_renewed_and_forgotten_in_the_keyring(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text(
        'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
    )
    ring = tmp_path / "ring"
    (ring / "data" / "keyrings").mkdir(parents=True)
    async with (
        secret_service(ring) as environment,
        world(tmp_path, "--life", "2", auth={"keyring": "auto"}) as place,
    ):
        done = await place.run("auth", "login", "notes", **environment)
        assert (done.code, "kept in the system's keyring" in done.out) == (0, True), done
        kept = list((place.state / "auth").iterdir())
        assert not [file for file in kept if any(token in file.read_text() for token in place.tokens())]
        run = await place.run("run", str(script), **environment)
        assert (run.code, json.loads(run.out)["result"]) == (0, "ada"), run
        granted = (tmp_path / "ledger.jsonl").stat().st_mtime
        await until(lambda: time.time() > granted + 2.2, "the token has expired")
        run = await place.run("run", str(script), **environment)
        assert (run.code, json.loads(run.out)["result"]) == (0, "ada"), run
        assert place.events("refresh")
        assert (await place.run("auth", "logout", "notes", **environment)).code == 0
        [status] = json.loads((await place.run("auth", "status", "--json", **environment)).out)
        assert status["state"] != "logged in"
