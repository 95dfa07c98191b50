"""Runs that are kept after their end: which, whose, what of them is shown, and what becomes of a full disk."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, ConfigError, Grantee
from cellblock.base.raw_json import RawJson
from cellblock.base.state_dir import JOURNALS
from cellblock.run.policy.asking import Caller
from support.brokers import ready
from support.commands import cellblock, in_this_process
from support.entries import plain_server, settings, write_config
from support.waits import within

SECRET = "hunter2-of-the-server"
SEEN = "what only the script has seen"
PLAIN = 'import * as plain from "@codemode/servers/plain";\n'
FAILS = f"""{PLAIN}console.log('{SEEN}', '{SECRET}');
await plain.echo({{ text: '{SEEN}' }});
throw new Error('planned');"""
WORKS = "globalThis.__codemode_result__ = 1;"

FAILED, ALL, OFF = (Grantee(f"stdio:{name}") for name in ("failed", "all", "off"))


def made_of(folder: Path) -> dict[str, Any]:
    return {
        "servers": {"plain": plain_server(env={"API_KEY": SECRET})},
        "journal": {"mode": "failed", "clients": {"stdio:all": "all", "stdio:off": "off"}},
        "auth": {"keyring": "off"},
        "typecheck": "off",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
async def broker(folder: Path) -> AsyncIterator[Broker]:
    async with ready(settings(folder / "state", **made_of(folder))) as made:
        yield made


async def run(broker: Broker, code: str, grantee: Grantee) -> str | None:
    """The id of a run that is kept."""
    return (await within(broker.run(code, grantee=grantee))).usage.run_id


def command(folder: Path, *words: str, code: int = 0, first: str = "runs") -> str:
    """What `cellblock runs` prints, as the user of this machine."""
    config = folder / "cellblock.json"
    if not config.exists():
        write_config(folder, **made_of(folder))
    done = in_this_process(first, *words, "--config", config, "--state-dir", folder / "state")
    assert done.code == code, done.err
    return done.out if code == 0 else done.err


async def test_which_runs_are_kept_is_their_clients_to_say(broker: Broker) -> None:
    named = {
        (grantee.principal, code): await run(broker, code, grantee) is not None
        for grantee in (FAILED, ALL, OFF)
        for code in (FAILS, WORKS)
    }
    assert named == {
        ("stdio:failed", FAILS): True,
        ("stdio:failed", WORKS): False,
        ("stdio:all", FAILS): True,
        ("stdio:all", WORKS): True,
        ("stdio:off", FAILS): False,
        ("stdio:off", WORKS): False,
    }


async def test_what_was_refused_before_it_began_is_not_kept(broker: Broker) -> None:
    response = await within(broker.run("import '@codemode/servers/absent';", grantee=ALL))
    assert not response.ok and response.usage.run_id is None
    assert "runId" not in response.as_json()["usage"]


async def test_a_kept_run_is_listed_shown_and_deleted(broker: Broker, folder: Path) -> None:
    await run(broker, WORKS, ALL)
    run_id = str(await run(broker, FAILS, FAILED))
    (newest, *_) = json.loads(command(folder, "list", "--json"))
    assert (newest["id"], newest["principal"], newest["outcome"]) == (
        run_id,
        "stdio:failed",
        "UNCAUGHT_EXCEPTION",
    )
    listed = command(folder, "list", "--client", "stdio:all")
    assert run_id not in listed and "stdio:all" in listed and "stdio:failed" not in listed
    shown = command(folder, "show", run_id)
    assert (
        "plain.echo" in shown
        and "UNCAUGHT_EXCEPTION" in shown
        and "log entries that are not shown: 1" in shown
    )
    assert SEEN not in shown and "script" not in json.loads(command(folder, "show", run_id, "--json"))
    whole = command(folder, "show", run_id, "--values")
    assert SEEN in whole and SECRET not in whole and "[redacted]" in whole
    assert command(folder, "delete", run_id) == f"deleted {run_id}\n"
    for words in (("show", run_id), ("delete", run_id)):
        assert f"No run {run_id} is kept" in command(folder, *words, code=2)


async def test_nothing_of_a_run_is_readable_in_the_state_directory(broker: Broker, folder: Path) -> None:
    assert await run(broker, FAILS, ALL) is not None
    files = [file for file in (folder / "state").rglob("*") if file.is_file()]
    assert (folder / "state" / JOURNALS) in files
    assert [file.name for file in files if SEEN.encode() in file.read_bytes()] == []


async def test_a_run_that_cannot_be_recorded_is_kept_without_a_recording(
    broker: Broker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = str(await run(broker, FAILS, ALL))
    monkeypatch.setattr("cellblock.record.journal.MAX_BYTES", 20)
    too_large = str(await run(broker, FAILS, ALL))
    monkeypatch.undo()
    without_utf_8 = str(await run(broker, f"{FAILS} // \ud800", ALL))
    for run_id in (too_large, without_utf_8):
        assert "plain.echo" in command(folder, "show", run_id, "--values")
        assert "kept without a recording" in command(folder, run_id, code=2, first="replay")
    shown = json.loads(command(folder, "show", whole, "--values", "--json"))
    assert [call["input"] for call in shown["values"]] == [{"text": SEEN}]


async def test_a_replay_hides_the_secrets_of_the_configuration(tmp_path: Path) -> None:
    async with ready(settings(tmp_path / "state", **made_of(tmp_path))) as broker:
        run_id = str(await run(broker, FAILS, ALL))
    config = write_config(tmp_path, **made_of(tmp_path))
    words = ("replay", run_id, "--values", "--config", config, "--state-dir", tmp_path / "state")
    said = (await cellblock(*words)).out
    assert json.loads(said)["replay"]["same"] is True
    assert SEEN in said and SECRET not in said and "[redacted]" in said


async def test_a_large_result_is_kept_without_being_decoded(
    broker: Broker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decoded(raw: RawJson) -> None:
        raise AssertionError("a large result was decoded in the broker")

    monkeypatch.setattr(RawJson, "decoded", decoded)
    request = {
        "code": "globalThis.__codemode_result__ = Array.from({ length: 60_000 }, (_, n) => `item ${n}`)"
    }
    response = await within(broker.run_request(request, Caller(grantee=ALL)))
    monkeypatch.undo()
    assert isinstance(response.result, RawJson) and response.usage.run_id is not None
    shown = json.loads(command(folder, "show", response.usage.run_id, "--values", "--json"))
    assert len(shown["result"]) == 60_000 and shown["result"][59_999] == "item 59999"


def test_a_look_at_a_damaged_file_says_so_and_leaves_it(tmp_path: Path) -> None:
    file = tmp_path / "state" / JOURNALS
    file.parent.mkdir(0o700)
    file.write_bytes(b"no database" * 1000)
    assert "is damaged" in command(tmp_path, "list", code=2)
    assert file.read_bytes().startswith(b"no database")


async def test_a_disk_that_cannot_be_written_costs_the_copy_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / JOURNALS).mkdir()
    async with Broker(settings(tmp_path, journal="all", auth={"keyring": "off"}, typecheck="off")) as broker:
        response = await within(broker.run(WORKS))
    assert response.ok and response.result == 1 and response.usage.run_id is None
    assert caplog.text.count("runs are not kept for now") == 1


async def test_a_running_daemon_takes_over_what_is_kept(tmp_path: Path) -> None:
    made = settings(tmp_path, auth={"keyring": "off"}, typecheck="off")
    async with Broker(made) as broker:
        assert (await within(broker.run(WORKS))).usage.run_id is None
        assert not (tmp_path / JOURNALS).exists(), "a file is made although nothing is kept"
        changed = settings(tmp_path, auth={"keyring": "off"}, typecheck="off", journal="all")
        assert broker.reconfigure(changed) == ["cellblock.journal.mode has changed"]
        response = await within(broker.run(WORKS))
        assert response.usage.run_id is not None
        assert broker.reconfigure(made) == ["cellblock.journal.mode has changed"]
        assert (await within(broker.run(WORKS))).usage.run_id is None
        assert [run["id"] for run in await broker.keeper.recent()] == [response.usage.run_id]


def test_runs_are_not_kept_in_a_folder_that_goes_with_the_program() -> None:
    from cellblock.app.config.load import parse_settings

    with pytest.raises(ConfigError, match="kept runs would be removed"):
        Broker(parse_settings({"cellblock": {"journal": {"clients": {"cli": "failed"}}}}))
