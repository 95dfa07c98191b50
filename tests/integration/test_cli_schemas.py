"""`cellblock schemas`: from a new overlay file to what agents are told, and forgetting what was observed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cellblock.cli import main
from support import plain_server, write_config


def test_overlay_and_store_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write_config(tmp_path, {"plain": plain_server()}))
    state = str(tmp_path / "state")

    def cellblock(*arguments: str, code: int = 0) -> str:
        found = main([*arguments, "--config", config, "--state-dir", state])
        out, err = capsys.readouterr()
        assert found == code, err
        return out if code == 0 else err

    assert "Nothing was observed yet" in cellblock("schemas", "clear", code=2)
    script = tmp_path / "script.js"
    script.write_text('import { echo } from "@codemode/servers/plain"; await echo({ id: 1 });', "utf-8")
    cellblock("run", str(script))
    exported: Any = json.loads(cellblock("schemas", "export"))["plain"]["echo"]
    assert (exported["source"], exported["samples"]) == ("observed", 1)
    assert cellblock("schemas", "diff", "plain", "echo") == "It has not changed.\n"

    file = Path(cellblock("schemas", "init", "plain").strip())
    assert "Observed from 1 result" in file.read_text("utf-8")
    assert "is there already" in cellblock("schemas", "init", "plain", code=2)
    overlay = '[tools.echo]\nclass = "read"\noutput = \'{"type": "object", "title": "Mine"}\'\n'
    file.write_text(overlay + 'examples = \'[{"input": {"id": 7}}]\'\n', "utf-8")
    told = json.loads(cellblock("inspect", "plain.echo"))
    assert (told["output"]["source"], told["output"]["samples"]) == ("given", 1)
    assert told["givenOutputSchema"]["title"] == "Mine" and told["outputSchema"] is None
    assert told["annotations"]["readOnlyHint"] is True
    assert told["inputSchema"]["examples"] == [{"id": 7}]
    assert '@example {"id": 7}' in told["declaration"]

    file.write_text("[tools.echo]\nclas = 1\n", "utf-8")
    assert f"{os.fspath(file)}: unknown key 'clas'" in cellblock("types", code=2)
    file.unlink()
    assert cellblock("schemas", "clear", "plain", "echo") == "forgot 1 tool\n"
    assert json.loads(cellblock("schemas", "export", "plain"))["plain"] == {}
