"""What another local user finds: of a running broker folders that only its owner can enter, and of commands their
arguments, in /proc. No secret is among them."""

import asyncio
import contextlib
import os
import re
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker
from support.commands import cellblock
from support.entries import CELLBLOCK, plain_server
from support.http_daemon import daemon
from support.oauth_world import world
from support.pseudo_terminal import in_terminal
from support.waits import until, within


async def test_the_folders_of_sockets_and_logs_are_the_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with Broker.from_config(None, state_dir=state) as broker:
        assert (await broker.run("globalThis.__codemode_result__ = 1")).result == 1
        folders = [state, *(path for path in state.rglob("*") if path.is_dir())]
        modes = {path.relative_to(state): stat.S_IMODE(path.stat().st_mode) for path in folders}
    assert state / "logs" in folders
    assert modes == dict.fromkeys(modes, 0o700)


SECRET = "hunter2-of-the-environment"


SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "scripts": {"dir": "kept"},
    "journal": "all",
    "policy": {"flows": "guard"},
}


class Watch(threading.Thread):
    """Walks over /proc, again and again, and holds every command line that it finds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.found: set[bytes] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.01):
            for process in psutil.pids():
                with contextlib.suppress(OSError):
                    self.found.add(Path(f"/proc/{process}/cmdline").read_bytes())

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
async def test_no_secret_is_in_a_command_line(tmp_path: Path) -> None:
    entry = plain_server()
    entry["env"] = {**entry.get("env", {}), "API_TOKEN": "${env:API_TOKEN}"}
    away = {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer ${env:API_TOKEN}"}}
    script = tmp_path / "script.js"
    script.write_text('import { echo } from "@codemode/servers/plain"; await echo({});')
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    # It stays until it has been seen.
    wait = f"while [ ! -e {tmp_path}/seen ]; do sleep 0.1; done"
    browser.write_text(f'#!/bin/sh\necho "$1" >{opened}.new; mv {opened}.new {opened}; {wait}\n')
    browser.chmod(0o755)
    env = {**os.environ, "API_TOKEN": SECRET, "BROWSER": f"{browser} %s &", "HOME": str(tmp_path)}
    secrets = [SECRET]
    with pytest.MonkeyPatch.context() as patch, Watch() as watch:
        patch.setenv("API_TOKEN", SECRET)
        async with daemon(tmp_path, servers={"mine": entry, "away": away}, **SECTION) as served:
            secrets.append(served.token)
            config, state = ("--config", tmp_path / "cellblock.json"), ("--state-dir", tmp_path / "s")
            there = ("--url", served.url, *state)
            async with in_terminal(str(CELLBLOCK), "dashboard", *map(str, there), env=env) as terminal:
                assert await within(terminal.process.wait()) == 0, terminal.text
            code = re.search(r"code=([\w-]+)", terminal.text)
            assert code is not None, terminal.text
            secrets.append(code[1])
            try:
                await until(opened.exists, "the browser has begun")
                seen = str(browser).encode()
                await until(lambda: any(seen in line for line in list(watch.found)), "the browser is seen")
            finally:
                (tmp_path / "seen").touch()
            page = tmp_path / "s" / "dashboard.html"
            assert opened.read_text().strip() == page.as_uri()
            assert (code[1] in page.read_text(), page.stat().st_mode & 0o777) == (True, 0o600)
            made = await cellblock("token", "create", "ci", *state, env=env)
            secrets += re.findall(r"[\w-]{43}", made.out)
            assert len(secrets) == 4, made
            commands = (
                ("run", script, *config, *state),
                ("types", "plain", *config, *state),
                ("doctor", *config, *state),
                ("config", "check", *config),
                ("import", "--dry-run", "--config", tmp_path / "new.json"),
                ("service", *config, *state),
                ("dashboard", "--no-open", *there),
                ("restart", "mine", *there),
                ("runs", "list", *config, *state),
                ("connect", *there),
                ("search", "echo", *config, *state),
                ("inspect", "mine.echo", *config, *state),
                ("secret", "list", *config),
                ("status", *config, *state),
                ("save", script, "kept", "--input", "{}", *config, *state),
                ("scripts", "list", *config, *state),
                ("test", *config, *state),
                ("flows", "list", *config, *state),
                ("auth", "list", *config, *state),
                ("auth", "status", *config, *state),
                ("auth", "logout", "away", *config, *state),
                ("token", "list", *state),
                ("token", "revoke", "ci", "--everything", *state),
                ("pins", "approve", "mine", "--show", *config, *state),
                ("schemas", "export", *config, *state),
                ("add", "more", "--config", tmp_path / "new.json", "--", "true"),
                ("logs", "mine", *config, *state),
                ("install", "cursor", "--yes", *config),
            )
            all_done = asyncio.gather(*(cellblock(*words, env=env, given=b"") for words in commands))
            for words, done in zip(commands, await all_done, strict=True):
                assert done.code in (0, 1) or words[:2] == ("auth", "logout"), (words, done)
        oauth = tmp_path / "oauth"
        oauth.mkdir()
        async with world(oauth) as place:
            done = await place.run("auth", "login", "notes")
            assert done.code == 0, done.err
            secrets += [*re.findall(r"[?&]state=([\w-]+)", done.err), *place.tokens()]
            assert len(secrets) == 7
    assert [line for line in watch.found if any(secret.encode() in line for secret in secrets)] == []
