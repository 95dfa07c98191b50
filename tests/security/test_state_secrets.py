"""Canaries: nothing of `state.url` and `state.key` in a log, a page, a command's output, or a command line."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.main import main
from support.commands import cellblock
from support.http_daemon import Daemon, daemon
from support.parked_runs import parked
from support.postgresql import Postgres
from support.waits import until_found, within

PASSWORD = "canary-password-9c1e"
KEY = base64.b64encode(b"canary-key-5b70-in-thirty-2-byte").decode()
SECRETS = (PASSWORD, KEY, base64.b64decode(KEY).decode(), base64.b64decode(KEY).hex())

SCRIPT = 'import { give } from "@codemode/servers/plain"; await give({ text: "one" });'


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
    await parked(served, SCRIPT)
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
        for secret in SECRETS:
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
    section = {"cellblock": {"state": {"key": KEY, **state}}}
    config = tmp_path / "cellblock.json"
    config.write_text(json.dumps(section))
    for words in (("config", "check"), ("runs", "list"), ("runs", "list", "--json")):
        main([*words, "--config", str(config), "--state-dir", str(tmp_path / "s")])
    told = capsys.readouterr()
    assert "cellblock" in told.err or "cellblock" in told.out
    for secret in (*SECRETS, KEY[:-8]):
        assert secret not in told.out + told.err
