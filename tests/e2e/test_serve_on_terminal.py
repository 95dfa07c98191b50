"""`cellblock serve` started by hand: a person is told what it waits for, and how to put it into an editor."""

from asyncio.subprocess import PIPE
from pathlib import Path

from support.entries import CELLBLOCK, write_config
from support.pseudo_terminal import in_terminal
from support.waits import until, within

END_OF_INPUT = b"\x04"


async def test_serve_on_a_terminal_says_what_it_waits_for(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    command = (str(CELLBLOCK), "serve", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    async with in_terminal(*command, streams=(0, 2), stdout=PIPE) as terminal:
        await until(lambda: "Ctrl-D ends this" in terminal.text, "what it waits for")
        said = " ".join(terminal.text.split())
        assert "waiting for an MCP client on standard input, which is a terminal" in said
        assert f"configuration: {config}" in said
        assert f"`cellblock install CLIENT --config {config}` puts it into one" in said
        terminal.press(END_OF_INPUT)
        # What a client reads is MCP alone.
        assert await within(terminal.process.stdout.read(), 60) == b""
        assert await within(terminal.process.wait(), 60) == 0
