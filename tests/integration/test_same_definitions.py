"""A server that is started again with the definitions that it had is known by the same ones: nothing is held twice."""

import signal
from pathlib import Path

import psutil
import pytest

from support.brokers import ready
from support.entries import plain_server, settings
from support.processes import command_line, descendants
from support.waits import until


@pytest.mark.usefixtures("quick_retries")
async def test_a_server_that_was_killed_has_the_definitions_that_it_had(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()})) as broker:
        before, session = broker.catalog.servers["plain"], broker.registry.sessions["plain"]
        own = [
            one
            for one in descendants(psutil.Process().pid)
            if any("plain_server" in word for word in command_line(one))
        ]
        for process in own:
            process.send_signal(signal.SIGKILL)
        await until(
            lambda: session.life.attempts > 1 and "plain" in broker.catalog.servers, "its next session"
        )
        assert broker.catalog.servers["plain"] is before
