"""What a configuration switches on in a real broker, and that nothing else is."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cellblock import Broker
from cellblock.app.config.load import load_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import TraceSettings
from cellblock.observe.traces import make_exporter
from support.entries import settings


async def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with Broker(settings(tmp_path)) as broker:
        assert broker.events.open("me", "1") is None
        assert not {thread.name for thread in threading.enumerate() if "audit" in thread.name} - before
    assert not (tmp_path / "audit.jsonl").exists()


async def test_the_audit_log_is_whole_when_the_broker_has_stopped(tmp_path: Path) -> None:
    # A run that is under way is ended by the stop, and its end is in the log too.
    async with Broker(settings(tmp_path, audit={"enabled": True})) as broker:
        assert (await broker.run("1")).ok
        task = asyncio.create_task(broker.run("await new Promise(() => {})"))
        async with asyncio.timeout(30):
            while broker.facts().pool()["running"] == 0:  # noqa: ASYNC110 - asked, as a dashboard does
                await asyncio.sleep(0.01)
    await asyncio.gather(task, return_exceptions=True)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run", "run_end", "run", "run_end"]
    assert [line["outcome"] for line in lines if "outcome" in line] == ["ok", "CANCELLED"]


def test_a_service_has_an_audit_log_unless_told_otherwise(tmp_path: Path) -> None:
    assert load_settings(None).for_service().cellblock.audit.enabled is True
    off = settings(tmp_path, audit={"enabled": False})
    assert off.for_service().cellblock.audit.enabled is False


def test_traces_without_the_extra_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'cellblock\[otel\]'"):
        make_exporter(TraceSettings(endpoint="http://127.0.0.1:4318/v1/traces"))


def test_the_broker_imports_none_of_it() -> None:
    heavy = (
        "prometheus_client",
        "opentelemetry.sdk",
        "cellblock.observe.audit",
        "cellblock.run.board",
    )
    code = f"import sys, cellblock.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
