"""Logins and named secrets in a real Secret Service: a session bus and a GNOME keyring of the test's own."""

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from support.commands import Said, cellblock, piped
from support.entries import CELLBLOCK, plain_server
from support.oauth_world import world
from support.secret_service import needs_secret_service, secret_service
from support.waits import until, within

pytestmark = pytest.mark.thorough


@needs_secret_service
async def test_a_login_is_kept_renewed_and_forgotten_in_the_keyring(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text(
        'import { whoami } from "@codemode/servers/notes"; globalThis.__codemode_result__ = await whoami({});'
    )
    async with (
        secret_service(tmp_path / "ring") as environment,
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


@needs_secret_service
async def test_a_secret_is_set_used_taken_over_when_it_changes_and_removed(tmp_path: Path) -> None:
    ring, file = tmp_path / "ring", tmp_path / "c.json"
    entry = {**plain_server(env={"TOKEN": "${keyring:MY_TOKEN}"}), "cwd": str(tmp_path)}
    state = {"state_dir": str(tmp_path / "s"), "pool": {"warm": 1}, "typecheck": "off"}
    file.write_text(json.dumps({"mcpServers": {"plain": entry}, "cellblock": state}))
    script = tmp_path / "script.js"
    script.write_text(
        'import { pid } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await pid({});'
    )
    async with secret_service(ring) as environment:
        environment |= {"XDG_STATE_HOME": str(ring / "state"), "XDG_CONFIG_HOME": str(ring / "config")}

        async def run(*words: str, given: bytes | None = None) -> Said:
            return await cellblock(*words, given=given, program=CELLBLOCK, env={**os.environ, **environment})

        code, _, err = await run("run", str(script), "--config", str(file), "--require", "plain")
        assert (code, "there is no secret MY_TOKEN" in err) == (2, True), err
        assert "cellblock secret set MY_TOKEN" in err
        assert (await run("secret", "set", "MY_TOKEN", given=b"hunter2-\xc3\xa9\n"))[0] == 0
        _, out, _ = await run("secret", "list", "--config", str(file))
        assert out == f"MY_TOKEN  mcpServers.plain.env.TOKEN in {file}\n"
        assert not [one for one in ring.rglob("*") if one.is_file() and b"hunter2" in one.read_bytes()]

        # A daemon that runs follows the secret, and is ended by nothing that happens to it.
        words = ("serve", "--http", "127.0.0.1:0", "--no-auth", "--config", file)
        async with piped(*words, program=CELLBLOCK, env={**os.environ, **environment}) as daemon:
            told = daemon.process.stderr
            assert told is not None
            await _said(told, "serving")
            assert (await run("secret", "set", "MY_TOKEN", given=b"another"))[0] == 0
            await _said(told, "server plain has changed")
            code, _, err = await run("secret", "remove", "MY_TOKEN", "--config", str(file))
            assert (code, "still refers to MY_TOKEN: mcpServers.plain.env.TOKEN" in err) == (0, True), err
            await _said(told, "server plain goes on as it was: there is no secret MY_TOKEN")
    # Without any keyring a file has it, and that is said.
    environment |= {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={tmp_path}/none"}
    code, out, err = await run("secret", "set", "MY_TOKEN", given=b"x")
    assert (code, "in encrypted files: there is no keyring" in out) == (0, True), err


async def _said(stream: asyncio.StreamReader, words: str) -> None:
    while words not in (line := (await within(stream.readline())).decode()):
        assert line, f"it has ended without: {words}"
