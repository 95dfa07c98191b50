"""Which command lines install a server first, and what is a server of what they start."""

import os
import signal
import subprocess
import sys

import pytest

from cellblock.tools.upstream import installs
from cellblock.tools.upstream.installs import has_started, package_of
from support.processes import descendants, name_of
from support.waits import until


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem /srv", "@modelcontextprotocol/server-filesystem"),
        ("/usr/bin/npx some-server", "some-server"),
        ("npm exec --yes some-server", "some-server"),
        ("npm --silent exec some-server", "some-server"),
        ("sh -c npx some-server", "some-server"),
        ("env A=b uvx mcp-server-git", "mcp-server-git"),
        ("uv run server.py", "server.py"),
        ("uv tool run mcp-server-git", "mcp-server-git"),
        ("pipx run some-server", "some-server"),
        ("bunx some-server", "some-server"),
        ("pnpm dlx some-server", "some-server"),
        ("node server.js", None),
        ("npm start", None),
        ("uv --version", None),
        ("/opt/npx-tools/server", None),
        ("docker run -i some/server", None),
    ],
)
def test_what_installs_is_known_by_its_command_line(line: str, package: str | None) -> None:
    assert package_of(line.split()) == package


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
@pytest.mark.parametrize(
    ("event", "started"), [("npm_lifecycle_event=npx", True), ("npm_lifecycle_event=postinstall", False)]
)
async def test_npm_says_what_it_has_started(
    event: str, started: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installs, "STEADY_SECONDS", 0.0)
    line = ["sh", "-c", f"{event} sleep 30; true"]
    with subprocess.Popen(line, start_new_session=True, env={"PATH": "/usr/bin:/bin"}) as process:  # noqa: ASYNC220
        try:
            await until(lambda: "sleep" in map(name_of, descendants(process.pid)), "npm has begun one")
            assert has_started(process.pid) == started
        finally:
            os.killpg(process.pid, signal.SIGKILL)
