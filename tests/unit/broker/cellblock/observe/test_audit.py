"""The audit log of real runs over the in-memory wire."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.base.settings.settings import AuditSettings
from cellblock.observe.audit import FILE_NAME, AuditLog
from cellblock.run.events import Decision
from support.memory_host import HostedRun, World

MakeWorld = Callable[..., World]
CODE = 'const secret = "in the script";'


async def play(run: HostedRun) -> None:
    run.leased()
    run.log("in the log")
    await run.call(1, value={"text": "in the input"})
    await run.call(2, tool="missing")
    run.done({"text": "in the result"}, wall_ms=7, cpu_ms=3, peak_bytes=4096)


async def lines_of(world: World, folder: Path, **settings: Any) -> list[dict[str, Any]]:
    audit = AuditLog(AuditSettings(**settings), folder)
    world.events.add(audit)
    await world.host(play)
    assert (await world.run(CODE)).ok
    audit.close()
    return [json.loads(line) for line in (folder / FILE_NAME).read_text().splitlines()]


async def test_who_ran_what_without_inputs_and_outputs(make_world: MakeWorld, tmp_path: Path) -> None:
    lines = await lines_of(make_world(), tmp_path)
    assert [line["event"] for line in lines] == ["run", "call", "call_end", "call", "call_end", "run_end"]
    assert len({line["run"] for line in lines}) == 1
    assert all(line["time"].endswith("Z") and line["client"] == "default" for line in lines)
    accepted, begun, ended, _, refused, over = lines
    assert accepted["script_sha256"] == hashlib.sha256(CODE.encode()).hexdigest()
    assert (begun["server"], begun["tool"], begun["call"]) == ("tools", "echo", 1)
    assert (ended["ok"], ended["certainty"]) == (True, "completed")
    assert (refused["ok"], refused["certainty"], refused["tool"]) == (False, "not_started", "missing")
    assert (over["outcome"], over["tool_calls"], over["failed_calls"], over["wall_ms"]) == ("ok", 2, 1, 7)
    assert "in the" not in json.dumps(lines)


async def test_inputs_and_outputs_where_asked_for(make_world: MakeWorld, tmp_path: Path) -> None:
    lines = await lines_of(make_world(), tmp_path, inputs=True, outputs=True)
    assert lines[0]["script"] == CODE
    assert json.loads(lines[1]["input"]) == json.loads(lines[2]["output"]) == {"text": "in the input"}
    assert json.loads(lines[-1]["output"]) == {"text": "in the result"}


async def test_a_decision_is_a_line_of_its_own(make_world: MakeWorld, tmp_path: Path) -> None:
    world, audit = make_world(), AuditLog(AuditSettings(), tmp_path)
    world.events.add(audit)
    world.events.decided(Decision(run="a1", verdict="accepted", calls=(1, 2), by="token"))
    audit.close()
    (line,) = [json.loads(line) for line in (tmp_path / FILE_NAME).read_text().splitlines()]
    assert line.pop("time").endswith("Z")
    assert line == {"event": "decision", "run": "a1", "verdict": "accepted", "calls": [1, 2], "by": "token"}


async def test_long_values_are_cut_and_marked(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.observe.audit.MAX_VALUE_BYTES", 5)
    lines = await lines_of(make_world(), tmp_path, inputs=True)
    assert (lines[0]["script"], lines[0]["script_cut"]) == ("const", len(CODE))
