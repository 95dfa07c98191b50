"""What a child process writes to its stderr: redacted across chunks, capped, whole at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.base.secrets.redaction import Redactor
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.upstream.stderr_log import CAP_BYTES, stderr_log, upstream_log

REDACTOR = Redactor(ServerConfig.model_validate({"command": "x", "env": {"API_KEY": "s3cret-value"}}))


async def write(path: Path, *chunks: str, on_said: Callable[[str], None] = lambda _: None) -> None:
    """Writes chunk by chunk, as a process would."""
    async with stderr_log(path, REDACTOR, on_said) as log:
        for chunk in chunks:
            await asyncio.to_thread(log.write, chunk)
            await asyncio.to_thread(log.flush)


async def test_secrets_are_replaced_even_in_pieces_and_without_a_line_end(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    await write(file, "one s3cret-", "value\ntwo\n", "last s3cret-value")
    assert file.read_text() == "one [redacted]\ntwo\nlast [redacted]"


async def test_a_file_is_appended_to_and_never_holds_more_than_its_cap(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    await write(file, "before\n")
    await write(file, "after\n")
    assert file.read_text() == "before\nafter\n"
    await write(file, *["x" * 99_999 + "\n"] * 25, "end\n")
    assert file.stat().st_size <= CAP_BYTES
    assert file.read_text().endswith("end\n")


@pytest.mark.parametrize(
    "chunks",
    [
        ("Error: API_KEY is not set\nbye\n",),
        ("Error: API_KEY is not set\nbye", "\n"),
        ("Error: API_KEY is", " not set\n", "  at main\n" * 40, "bye"),
    ],
)
async def test_what_follows_an_error_does_not_hide_it_in_however_many_pieces_it_comes(
    tmp_path: Path, chunks: tuple[str, ...]
) -> None:
    said: list[str] = []
    await write(tmp_path / "a.log", *chunks, on_said=said.append)
    assert said[-1] == "Error: API_KEY is not set"
    await write(tmp_path / "a.log", *chunks, "x\n" * 4096, on_said=said.append)
    assert said[-1] == "x", "what was long before is of something else"


def test_each_server_has_a_log_of_its_own(tmp_path: Path) -> None:
    names = ["a_b", "a.b", "a b", "a/b", "../a_b", "ä", "x" * 60, "x" * 61, "x" * 62, "a\n"]
    logs = {upstream_log(tmp_path, name) for name in names}
    assert len(logs) == len(names) and {log.parent for log in logs} == {tmp_path}
    assert upstream_log(tmp_path, "a_b").name == "upstream-a_b.log"
