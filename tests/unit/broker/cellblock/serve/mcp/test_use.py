"""What clients have used: counted once for each start, faded with time, and nothing of others touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellblock.serve.mcp import use
from cellblock.serve.mcp.use import (
    FILE_NAME,
    MAX_NAME_CHARS,
    MAX_PRINCIPALS,
    MAX_SERVERS,
    UseLog,
    add_uses,
    read_uses,
)
from support.waits import until


async def noted(folder: Path, *servers: str, principal: str = "editor") -> None:
    log = UseLog(folder)
    log.note(principal, servers)
    log.note(principal, servers)
    await until(lambda: log._writing is None or log._writing.done(), "it is written")  # pyright: ignore[reportPrivateUsage]


async def test_the_most_used_of_late_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    day = 20_000
    monkeypatch.setattr(use, "_today", lambda: day)
    for _ in range(3):
        await noted(tmp_path, "old")
    day += 60
    await noted(tmp_path, "often", "once")
    await noted(tmp_path, "often")
    await noted(tmp_path, "other", principal="another")
    assert UseLog(tmp_path).ranked("editor") == ["often", "once", "old"]
    assert UseLog(tmp_path).ranked("another") == ["other"]
    assert UseLog(tmp_path).ranked("nobody") == []


async def test_what_a_client_is_shown_does_not_change_while_it_works(tmp_path: Path) -> None:
    log = UseLog(tmp_path)
    assert log.ranked("editor") == []
    await noted(tmp_path, "files")
    assert log.ranked("editor") == [] and UseLog(tmp_path).ranked("editor") == ["files"]


@pytest.mark.parametrize(
    "text",
    [
        '{"mine": 1}',
        "no JSON",
        '{"usesOfServers": [1]}',
        "[]",
        '"x"',
        '{"usesOfServers": {"editor": {"files": [1, 1e400]}}}',
        '{"usesOfServers": {"editor": {"files": [1e400, 1]}}}',
        f'{{"usesOfServers": {{"editor": {{"files": [1, -1{"0" * 400}]}}}}}}',
        f'{{"usesOfServers": {{"editor": {{"files": [1{"0" * 400}, 1]}}}}}}',
    ],
)
async def test_a_file_of_somebody_else_stays(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, "utf-8")
    await noted(tmp_path, "files")
    assert (tmp_path / FILE_NAME).read_text("utf-8") == text
    assert UseLog(tmp_path).ranked("editor") == []


def test_the_file_is_bounded_and_private(tmp_path: Path) -> None:
    add_uses(tmp_path, [(f"p{number}", "s") for number in range(MAX_PRINCIPALS + 5)])
    add_uses(tmp_path, [("last", f"s{number}") for number in range(MAX_SERVERS + 5)])
    kept = read_uses(tmp_path)
    assert kept is not None and len(kept) == MAX_PRINCIPALS and "p0" not in kept
    assert len(kept["last"]) == MAX_SERVERS and f"s{MAX_SERVERS + 4}" in kept["last"]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]
    longest = [(f"{number}{'𝄞' * MAX_NAME_CHARS}"[:MAX_NAME_CHARS], "") for number in range(MAX_PRINCIPALS)]
    add_uses(tmp_path, [(one, two) for one, _ in longest for two, _ in longest])
    assert len(read_uses(tmp_path) or {}) == MAX_PRINCIPALS
    assert "usesOfServers" in json.loads((tmp_path / FILE_NAME).read_text("utf-8"))


async def test_a_directory_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    await noted(tmp_path / "missing", "files")
    assert UseLog(tmp_path / "missing").ranked("editor") == []
