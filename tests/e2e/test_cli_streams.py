"""Standard streams that are closed, full, left by their reader, or in an encoding that lacks what is said.

`run` and `--version` are the console script, which Python starts with such streams; the other commands are forked.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support.cellblock_zygote import forked_cellblock
from support.entries import CELLBLOCK, plain_server, write_config
from support.pseudo_terminal import in_terminal
from support.waits import within

pytestmark = pytest.mark.thorough

BOUND_SECONDS = 120

COMMANDS = {
    "run": ("run", "script.js"),
    "types": ("types", "--config", "cellblock.json"),
    "config check": ("config", "check", "--config", "cellblock.json"),
    "import": ("import", "--dry-run"),
    "service": ("service", "--systemd"),
    "version": ("--version",),
    "help": ("run", "--help"),
}

SCRIPT = "globalThis.__codemode_result__ = 'ü€😀'.repeat(100_000);"
"""Its response is far over what a pipe holds."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.js").write_text(SCRIPT, encoding="utf-8")
    write_config(tmp_path, {"plain": plain_server()})
    return tmp_path


def shell(
    folder: Path, line: str, *words: str, program: Path | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """A line of bash; `"$@"` in it is the command."""
    if program is None:
        program = CELLBLOCK if words[0] in ("run", "--version") or env else forked_cellblock()
    return subprocess.run(
        ["bash", "-c", line, "-", str(program), *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=BOUND_SECONDS,
    )


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_cannot_be_written_is_said_and_has_an_exit_code_of_its_own(
    folder: Path, words: tuple[str, ...]
) -> None:
    full = shell(folder, '"$@" >/dev/full', *words)
    assert full.returncode == 3
    assert full.stderr.decode() == (
        "cellblock: Standard output cannot be written: No space left on device.\n"
    )
    closed = shell(folder, '"$@" >&-', *words)
    assert closed.returncode == 3
    assert closed.stderr.decode() == "cellblock: Standard output cannot be written: Bad file descriptor.\n"


@pytest.mark.parametrize("words", [COMMANDS["run"], COMMANDS["types"], COMMANDS["version"]])
def test_a_reader_that_has_gone_ends_a_command_as_sigpipe_does(folder: Path, words: tuple[str, ...]) -> None:
    # Its reader has gone before anything is written.
    left = shell(folder, '{ sleep 0.2; "$@"; echo $? >&2; } | true', *words)
    assert left.stderr == b"141\n"


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_the_other_streams_a_command_does_the_same(folder: Path, closed: str) -> None:
    done = shell(folder, f'"$@" {closed}', *COMMANDS["run"])
    assert done.returncode == 0
    assert json.loads(done.stdout)["result"] == "ü€😀" * 100_000
    refused = shell(folder, f'"$@" {closed}', "run", "absent.js", program=forked_cellblock())
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict"])
def test_data_is_utf_8_and_text_is_escaped_where_the_encoding_lacks_it(folder: Path, encoding: str) -> None:
    ran = shell(folder, '"$@"', *COMMANDS["run"], PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout.decode())["result"].startswith("ü€😀")
    (folder / "€.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    checked = shell(folder, '"$@"', "config", "check", "--config", "€.json", PYTHONIOENCODING=encoding)
    assert (checked.returncode, checked.stdout) == (0, b"\\u20ac.json: fine. Servers: x (stdio)\n")


async def test_whatever_is_written_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]52;c;ZXZpbA==\x07\x1b[2Aup\r\u202e"
    file = tmp_path / f"x{hostile}.json"
    file.write_text(json.dumps({"mcpServers": {f"a{hostile}": {"command": f"b{hostile}"}}, f"c{hostile}": 1}))
    config = ("--config", str(file))
    for words in (
        ("config", "check", *config),
        ("add", *config, f"x{hostile}", "--", "y"),
        ("schemas", "show", *config),
        ("types", *config),
    ):
        async with in_terminal(str(CELLBLOCK), *words) as terminal:
            await within(terminal.process.wait())
        left = re.sub(r"\x1b\[[\d;]*m", "", terminal.text).replace("\r\n", "\n")
        assert all(one.isprintable() or one in "\n\t" for one in left), (words, left)
