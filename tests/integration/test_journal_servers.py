"""Journals of runs with the public servers: what is recorded is replayed and gone on with, and nothing called twice."""

import contextlib
import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, RunResponse
from cellblock.app.replay import replay
from cellblock.record.journal import Journal
from support.brokers import host_of, ready
from support.cellblock_zygote import forked_python, started
from support.entries import settings
from support.processes import kill_family
from support.public_servers import ServerEntry
from support.replaying import cuts
from support.waits import until, within

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


@pytest.mark.thorough
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
    async with ready(settings(tmp_path / "state", servers, typecheck="off")) as broker:
        journal = Journal()
        response = await within(broker.run_request({"code": code}, journal=journal))
        assert response.ok, response.diagnostics
        recording = journal.snapshot()
        assert (await within(replay(recording))).differences == []
        before = changed_at(folder, tmp_path / "memory.jsonl")
        # At a cut after the write: what was written is not written again, and the rest is called.
        written = next(call.id for call in recording.calls if call.tool == "write_file")
        part = next(cut for cut in cuts(recording) if cut.events.endswith(f"a{written}"))
        resumed = Journal(part)
        response = await within(broker.run_request(resumed.request, journal=resumed))
        assert response.ok, response.diagnostics
        assert changed_at(folder, tmp_path / "memory.jsonl") == before
    assert (await within(replay(resumed.snapshot()))).differences == []


ROUNDS = 6
WRITES = """import { edit_file } from "@codemode/servers/files";
import { create_entities } from "@codemode/servers/memory";
const told = {};
const write = async (name, call) => {
  try {
    await call();
    told[name] = "made";
  } catch (error) {
    told[name] = error.certainty;
  }
};
for (let round = 0; round < ROUNDS; round++) {
  const [entity, line] = [`entity ${round};`, `line ${round};`];
  await Promise.all([
    write(entity, () => create_entities({ entities: [{ name: entity, entityType: "e", observations: [] }] })),
    write(line, () => edit_file({ path: `FOLDER/lines.txt`, edits: [{ oldText: "END", newText: `${line}\\nEND` }] })),
  ]);
}
globalThis.__codemode_result__ = told;
"""
"""Both servers write at once. A line that is written again stands there twice; of an entity only what came tells it."""

BROKER = """
import asyncio, json, sys
from pathlib import Path
from cellblock import Broker
from support.entries import settings

async def main():
    folder = Path(sys.argv[1])
    servers = json.loads((folder / "servers.json").read_text())
    async with Broker(settings(folder / "s", servers, auth={"keyring": "off"}, typecheck="off")) as broker:
        await broker.settled()
        await broker.run((folder / "script.js").read_text(), durable=True)

asyncio.run(main())
"""


def noting(entry: ServerEntry, ledger: Path) -> ServerEntry:
    """A server before which stands what writes down all that comes to it."""
    words = shlex.join([entry["command"], *entry["args"]])
    return {**entry, "command": "sh", "args": ["-c", f"tee -a {shlex.quote(str(ledger))} | {words}"]}


def came(ledger: Path) -> Counter[str]:
    """How often each call has come to its server, by the name that its script gave it."""
    found: Counter[str] = Counter()
    for line in ledger.read_text().splitlines() if ledger.exists() else ():
        # The last one may be cut off by a death.
        with contextlib.suppress(ValueError):
            message = json.loads(line)
            if message.get("method") == "tools/call":
                arguments = message["params"]["arguments"]
                text = (
                    arguments["entities"][0]["name"]
                    if "entities" in arguments
                    else arguments["edits"][0]["newText"]
                )
                found[text.partition(";")[0] + ";"] += 1
    return found


async def test_real_servers_are_called_once_whoever_dies(
    server_filesystem: ServerEntry,
    server_memory: ServerEntry,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    for number in range(pytestconfig.getoption("--deaths")):
        folder = tmp_path / str(number)
        folder.mkdir()
        await _survives(server_filesystem, server_memory, folder, random.Random(number))


async def _survives(files: ServerEntry, memory: ServerEntry, folder: Path, chance: random.Random) -> None:
    """The first broker is killed with all below it, then the host of the second one; each at any call."""
    root, ledger, graph = Path(files["args"][-1]), folder / "came.jsonl", folder / "memory.jsonl"
    (root / "lines.txt").write_text("END\n")
    servers: dict[str, Any] = {
        "files": noting(files, ledger),
        "memory": noting({**memory, "env": {"MEMORY_FILE_PATH": str(graph)}}, ledger),
    }
    (folder / "servers.json").write_text(json.dumps(servers))
    code = WRITES.replace("ROUNDS", str(ROUNDS)).replace("FOLDER", str(root))
    (folder / "script.js").write_text(code)
    first, second = sorted(chance.sample(range(1, 2 * ROUNDS), 2))
    words = ("-c", BROKER, folder)
    process = await started(*words, program=forked_python(), cwd=Path(__file__).parents[1])
    await until(lambda: came(ledger).total() >= first, f"{first} calls have come")
    kill_family(process.pid)
    await within(process.wait())
    async with Broker(settings(folder / "s", servers, auth={"keyring": "off"}, typecheck="off")) as broker:
        await until(lambda: came(ledger).total() >= second, f"{second} calls have come")
        host_of(broker).kill()
        (head,) = await broker.keeper.recent()
        response = await within(broker.parked_runs.outcome(head["id"]), 60)
    assert isinstance(response, RunResponse) and response.ok, response
    _judge(response.result, came(ledger), (root / "lines.txt").read_text(), graph.read_text())


def _judge(told: dict[str, str], calls: Counter[str], lines: str, graph: str) -> None:
    """What the script was told is what has come to the servers, and what they have written."""
    assert len(told) == 2 * ROUNDS and calls.keys() <= told.keys(), (told, calls)
    bounds = {"made": (1, 1), "completed": (1, 1), "may_have_run": (0, 1), "not_started": (0, 0)}
    for name, word in told.items():
        least, most = bounds[word]
        assert least <= calls[name] <= most, (name, word, calls)
        written = lines.count(name) + graph.count(json.dumps(name))
        assert written <= 1 and (written == 1 or word != "made"), (name, word, lines, graph)
