"""What a reference stood for is a secret wherever a real server quotes it, also under a name that says nothing."""

import json
import sys
from pathlib import Path

import pytest

from cellblock.app.config.load import load_settings
from support.brokers import ready
from support.entries import SERVERS, for_tests
from support.waits import until, within

CODE = """
    import { confess, refuse } from "@codemode/servers/leaky";
    const seen = [];
    for (const tool of [confess, refuse]) {
        try { seen.push(await tool({})); }
        catch (error) { seen.push(error.message, error.stack, JSON.stringify(error), JSON.stringify(error.result)); }
    }
    globalThis.__codemode_result__ = seen;
"""


async def test_a_server_that_quotes_it_is_not_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOMETHING", "canary-by-variable-1")
    (tmp_path / "file").write_text("canary-by-file-2\n")
    entry = {
        "command": sys.executable,
        "args": [
            "-I",
            str(SERVERS / "odd_server.py"),
            "leaks",
            "--where=${SOMETHING}",
            "$${left} ${file:file}",
        ],
        "env": {"CANARY_PLACE": "${file:file}", "CANARY_OTHER": "a ${env:SOMETHING} b"},
    }
    config = tmp_path / "c.json"
    cellblock = for_tests({"state_dir": str(tmp_path / "s")})
    config.write_text(json.dumps({"servers": {"leaky": entry}, "cellblock": cellblock}))
    settings = load_settings(config)
    assert settings.servers["leaky"].args[3:] == ["--where=canary-by-variable-1", "${left} canary-by-file-2"]
    async with ready(settings) as broker:
        response = await within(broker.run(CODE))
        log = tmp_path / "s" / "logs" / "upstream-leaky.log"
        await until(lambda: log.exists() and "leak:" in log.read_text(), "the server's stderr")
    said = json.dumps(response.as_json()) + log.read_text()
    assert "leak: " in said and "[redacted]" in said
    assert "canary-by" not in said
