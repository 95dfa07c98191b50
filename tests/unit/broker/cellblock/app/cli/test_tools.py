"""What people are shown of tools: everything that matters, and nothing that a terminal would act on."""

from __future__ import annotations

import io

import pytest

from cellblock.app.cli.tools import search_text, tool_text
from cellblock.base.terminal import Painter

HOSTILE = {
    "serverId": "files",
    "toolName": "read\x1b[2Jfile",
    "exportName": "read_file",
    "module": "@codemode/servers/files",
    "description": "Reads.\nTwice \x1b]0;title\x07\u202e",
    "declaration": "/** Reads. */\nexport function read_file(): Promise<unknown>;\x9b2J\n",
    "note": "No output schema.",
    "warning": "Not as pinned\x1b[31m.",
    "examples": [{"input": {"a": "\x1b[0m"}}],
}


def test_one_tool() -> None:
    text = tool_text(HOSTILE, Painter(None))
    assert all(char.isprintable() or char == "\n" for char in text)
    for part in (
        "files.read",
        'import { read_file } from "@codemode/servers/files";',
        "No output schema.",
        "pinned",
    ):
        assert part in text


def test_results(monkeypatch: pytest.MonkeyPatch) -> None:
    text = search_text([HOSTILE, {"serverId": "a", "toolName": "b"}], Painter(None))
    assert text.splitlines()[1] == "a.b"
    assert all(char.isprintable() or char == "\n" for char in text)
    assert search_text([], Painter(None)) == "nothing found"
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1;36mb\x1b[0m" in search_text([{"serverId": "a", "toolName": "b"}], Painter(io.StringIO()))
