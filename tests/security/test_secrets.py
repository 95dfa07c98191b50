"""Canaries: no secret of the configuration in a response, an error, a log, or the processes of the host; and nothing of
`state.url` and `state.key` in a log, a page, a command's output, or a command line. And what another local user finds:
of a running broker folders that only its owner can enter, and of commands their arguments, in /proc, with no secret
among them."""

import asyncio
import base64
import contextlib
import json
import os
import re
import stat
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker
from cellblock.app.cli.main import main
from support.brokers import host_of, ready
from support.commands import cellblock
from support.entries import CELLBLOCK, SERVERS, WARM, plain_server, settings
from support.http_daemon import Daemon, daemon
from support.http_server import Answering, serving
from support.oauth_world import world
from support.parked_runs import parked
from support.postgresql import Postgres
from support.processes import descendants, told_to
from support.pseudo_terminal import in_terminal
from support.waits import until, until_found, warmed, within

CANARIES = {
    "env": "canary-env-5b1d",
    "option": "canary-option-77a0",
    "following": "canary-following-91fe",
    "header": "canary-header-c04e",
    "bearer": "canary-bearer-2f66",
    "user": "canary-user-8d13",
    "password": "canary-password-40be",
    "query": "canary-query-e9c2",
    "dsn": "canary-dsn-66d1",
}

CODE = """
    const seen = [];
    for (const name of ["leaky", "refusing", "http", "sse", "nobody"]) {
        let module;
        try { module = await import(`@codemode/servers/${name}`); } catch (error) {
            seen.push(error.message, error.hint, error.stack, JSON.stringify(error)); continue; }
        for (const tool of ["confess", "refuse"]) {
            try { seen.push(await module[tool]({})); } catch (error) {
                seen.push(error.message, error.hint, error.stack, JSON.stringify(error), JSON.stringify(error.result));
                console.error(error);
            }
        }
    }
    globalThis.__codemode_result__ = seen;
"""


class Refusing(Answering):
    """Answers every request with a refusal that quotes all of it."""

    def do_POST(self) -> None:
        message = json.loads(self.body() or b"{}")
        quoted = f"{self.path} {self.headers} {self.headers.get('authorization')}"
        body = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -32001, "message": quoted}}
        status = 200 if "id" in message else 401
        self.answer(status, json.dumps(body).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        self.answer(401, f"{self.path} {self.headers}".encode(), Content_Type="application/json")


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """A port of this machine where `Refusing` answers."""
    with serving(Refusing) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
async def broker(folder: Path, http_port: int, records: list[str]) -> AsyncIterator[Broker]:
    """A broker whose servers were all given canaries."""
    arguments = [
        f"--api-key={CANARIES['option']}", "--token", CANARIES["following"], f"postgres://app:{CANARIES['dsn']}@db/x"
    ]  # fmt: skip
    leaky = {
        "command": sys.executable,
        "args": ["-I", str(SERVERS / "odd_server.py"), "leaks", *arguments],
        "env": {"CANARY_API_KEY": CANARIES["env"], "CANARY_SERVICE": f"https://u:{CANARIES['dsn']}@service/"},
    }
    place = f"{CANARIES['user']}:{CANARIES['password']}@127.0.0.1"
    headers = {"Authorization": f"Bearer {CANARIES['bearer']}", "X-Api-Key": CANARIES["header"]}
    query = f"?api_key={CANARIES['query']}"
    servers = {
        "leaky": leaky,
        "refusing": {**leaky, "args": ["-I", str(SERVERS / "odd_server.py"), "refuses", *arguments]},
        "http": {"url": f"http://{place}:{http_port}/mcp{query}", "headers": headers},
        "sse": {"type": "sse", "url": f"http://{place}:{http_port}/sse{query}", "headers": headers},
        "nobody": {"url": f"http://{place}:1/mcp{query}", "headers": headers},
    }
    async with ready(settings(folder, servers, pool={"warm": WARM})) as started:
        assert list(started.catalog.servers) == ["leaky"], started.catalog.unavailable
        yield started


def quoted(text: str) -> list[str]:
    """Which canaries are in the text."""
    return [name for name, canary in CANARIES.items() if canary in text]


async def test_no_canary_in_a_response(broker: Broker) -> None:
    """All errors that a script can provoke, with the servers' own words around the secrets."""
    response = await within(broker.run(CODE))
    text = json.dumps(response.as_json())
    assert response.ok and text.count("leak: ") >= 4, text[:2000]
    assert "[redacted]" in text
    assert quoted(text) == []


async def test_no_canary_in_the_reasons_that_everybody_is_told(broker: Broker) -> None:
    reasons = broker.catalog.unavailable
    assert set(reasons) == {"refusing", "http", "sse", "nobody"}
    assert quoted(json.dumps(reasons)) == [], reasons


@pytest.mark.parametrize("name", ["refusing", "http", "sse", "nobody"])
async def test_no_canary_in_the_diagnostic_of_an_import(broker: Broker, name: str) -> None:
    response = (await within(broker.run(f'import "@codemode/servers/{name}";'))).as_json()
    expected = "AuthenticationError" if name == "sse" else "ServerNotFoundError"
    assert response["diagnostics"][0]["errorClass"] == expected
    assert quoted(json.dumps(response)) == [], response


async def test_no_canary_in_processes_of_the_host(broker: Broker) -> None:
    """Neither the host nor a worker is given any of it, by environment or command line."""
    await warmed(broker, 1)
    host = host_of(broker)
    processes = [host, *descendants(host.pid)]
    assert len(processes) >= 2
    told = [text for process in processes for text in told_to(process)]
    assert len(told) >= 2 and quoted("\n".join(told)) == []


async def test_no_canary_in_files_of_the_state_directory_or_log_records(
    broker: Broker, folder: Path, records: list[str]
) -> None:
    await within(broker.run(CODE))
    files = [file for file in folder.rglob("*") if file.is_file()]  # noqa: ASYNC240
    contents = {file.name: file.read_bytes().decode("utf-8", "replace") for file in files}
    assert "host.log" in contents and "leak: " in contents["upstream-leaky.log"]
    assert {name: quoted(text) for name, text in contents.items() if quoted(text)} == {}
    assert any("cellblock.tools.upstream" in record for record in records)
    assert quoted("\n".join(records)) == []


PASSWORD = "canary-password-9c1e"
KEY = base64.b64encode(b"canary-key-5b70-in-thirty-2-byte").decode()
STATE_SECRETS = (PASSWORD, KEY, base64.b64decode(KEY).decode(), base64.b64decode(KEY).hex())


async def said_by(served: Daemon, *words: str) -> str:
    options = ["--config", str(served.folder / "cellblock.json"), "--state-dir", str(served.folder / "s")]
    if words[0] in ("dashboard", "doctor"):
        options += ["--url", served.url]
    _, out, err = await cellblock(*words, *options)
    assert out or err, words
    return out + err


async def everything(served: Daemon, *commands: str) -> str:
    """What whoever asks can learn, with the token and without."""
    said = [await said_by(served, *words.split()) for words in commands]
    paths = ("/readyz", "/metrics", "/dashboard", "/dashboard/data")
    shown = [(await served.ask("GET", path, headers=served.auth)).body.decode() for path in paths]
    return "\n".join([*said, *shown, *(" ".join(process.cmdline()) for process in served.family())])


@pytest.fixture
async def served(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Daemon]:
    monkeypatch.setenv("CANARY_STATE_URL", postgres_url.replace("postgres@", f"postgres:{PASSWORD}@"))
    monkeypatch.setenv("CANARY_STATE_KEY", KEY)
    section: dict[str, Any] = {
        "state": {"url": "${env:CANARY_STATE_URL}", "key": "${env:CANARY_STATE_KEY}"},
        "auth": {"keyring": "off"},
        "typecheck": "off",
        "log": {"level": "debug"},
    }
    # Its host has a command line of its own.
    async with daemon(tmp_path, console_script=True, **section) as running:
        yield running


async def test_no_canary_with_postgresql_there_or_away(served: Daemon, postgres: Postgres) -> None:
    await parked(served, 'import { give } from "@codemode/servers/plain"; await give({ text: "one" });')
    found = [await everything(served, "dashboard --no-open")]
    postgres.stop()
    try:

        async def is_away() -> bool:
            return b"away" in (await served.ask("GET", "/readyz")).body

        await until_found(is_away, "it is seen")
        found.append(await everything(served, "doctor", "runs list", "config check"))
    finally:
        postgres.start()
    served.process.terminate()
    await within(served.process.wait())
    served.said.append((await within(served.process.stderr.read())).decode())
    assert "PostgreSQL is away" in "".join(served.said)
    files = [path.read_bytes() for path in (served.folder / "s").rglob("*") if path.is_file()]
    found += [*served.said, *(data.decode("latin-1") for data in files)]
    for text in found:
        for secret in STATE_SECRETS:
            assert secret not in text, text[max(0, text.index(secret) - 200) :][:500]


@pytest.mark.parametrize(
    "state",
    [
        {"url": f"postgres://me:{PASSWORD}@host/x"},
        {"url": f"postgresql://me:{PASSWORD}@host/x y"},
        {"url": f"postgresql://me:{PASSWORD}@host:port/x"},
        {"url": f"postgresql://me:{PASSWORD}@host/x?no_such=1"},
        {"url": f"postgresql://me:{PASSWORD}@/x?host=/nowhere"},
        {"url": f"postgresql://me:{PASSWORD}@/x?host=/nowhere", "key": KEY[:-8]},
        {"url": f"postgresql://me:{PASSWORD}@/x?host=/nowhere", "key": f"{KEY}!"},
        {"url": f"postgresql://me:{PASSWORD}@/x?host=/nowhere", "key": [KEY]},
    ],
)
def test_what_is_wrong_with_them_is_said_without_them(
    state: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "cellblock.json"
    config.write_text(json.dumps({"cellblock": {"state": {"key": KEY, **state}}}))
    for words in (("config", "check"), ("runs", "list"), ("runs", "list", "--json")):
        main([*words, "--config", str(config), "--state-dir", str(tmp_path / "s")])
    told = capsys.readouterr()
    assert "cellblock" in told.err or "cellblock" in told.out
    for secret in (*STATE_SECRETS, KEY[:-8]):
        assert secret not in told.out + told.err


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
