"""Journals of runs with the public servers: what is recorded is replayed and gone on with, and nothing called twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.daemon.replay import replay
from cellblock.journal.journal import Journal
from support.entries import settings
from support.public_servers import ServerEntry
from support.replaying import cuts
from support.waits import within

pytestmark = pytest.mark.servers

SCRIPT = """import { read_text_file, write_file } from "@codemode/servers/files";
import { git_log } from "@codemode/servers/git";
import { create_entities, read_graph } from "@codemode/servers/memory";
import { echo, get_structured_content } from "@codemode/servers/everything";
const [text, log, weather] = await Promise.all([
  read_text_file({ path: `FOLDER/hello.txt` }),
  git_log({ repo_path: `REPOSITORY`, max_count: 3 }),
  get_structured_content({ location: "New York" }),
]);
console.log(JSON.stringify(text).length, new Date().getFullYear() > 2000);
await create_entities({ entities: [{ name: crypto.randomUUID(), entityType: "apple", observations: ["one"] }] });
const path = `FOLDER/${crypto.randomUUID()}.txt`;
await write_file({ path, content: JSON.stringify(log) });
const said = await Promise.race([echo({ message: path }), read_graph()]);
globalThis.__codemode_result__ = { text, weather, said, graph: await read_graph() };
"""


def changed_at(folder: Path, file: Path) -> dict[str, int]:
    """When each file was written last: both servers write anew what they are told again."""
    return {one.name: one.stat().st_mtime_ns for one in [*folder.iterdir(), file]}


async def test_runs_with_real_servers_are_replayed_and_gone_on_with(
    server_filesystem: ServerEntry,
    server_git: ServerEntry,
    server_memory: ServerEntry,
    server_everything: ServerEntry,
    git_repository: Path,
    tmp_path: Path,
) -> None:
    folder = Path(server_filesystem["args"][-1])
    code = SCRIPT.replace("FOLDER", str(folder)).replace("REPOSITORY", str(git_repository))
    servers: dict[str, Any] = {
        "files": server_filesystem,
        "git": server_git,
        "memory": server_memory,
        "everything": server_everything,
    }
    async with Broker(settings(tmp_path / "state", servers, typecheck="off")) as broker:
        await within(broker.settled())
        journal = Journal.recording()
        response = await within(broker.run_request({"code": code}, journal=journal))
        assert response.ok, response.diagnostics
        recording = journal.snapshot()
        assert (await within(replay(recording))).differences == []
        before = changed_at(folder, tmp_path / "memory.jsonl")
        # At a cut after the write: what was written is not written again, and the rest is called.
        written = next(call.id for call in recording.calls if call.tool == "write_file")
        part = next(cut for cut in cuts(recording) if cut.events.endswith(f"a{written}"))
        resumed = Journal.resuming(part)
        response = await within(broker.run_request(resumed.request, journal=resumed))
        assert response.ok, response.diagnostics
        assert changed_at(folder, tmp_path / "memory.jsonl") == before
    assert (await within(replay(resumed.snapshot()))).differences == []
