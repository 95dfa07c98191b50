"""One script over three public servers, from the shell and through an MCP client: the same script, the same counts."""

import asyncio
import json
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from support.cellblock_zygote import forked_cellblock
from support.entries import write_config
from support.public_servers import ServerEntry
from support.waits import within

pytestmark = [pytest.mark.thorough, pytest.mark.servers]

SCRIPT = """
import { get_current_time } from "@codemode/servers/time";
import { git_log } from "@codemode/servers/git";
import { write_file, list_directory } from "@codemode/servers/filesystem";

const [now, log] = await Promise.all([
  get_current_time({ timezone: "UTC" }),
  git_log({ repo_path: REPOSITORY, max_count: 50 }),
]);
const time = typeof now === "string" ? JSON.parse(now) : now;
const text = typeof log === "string" ? log : JSON.stringify(log);
const commits = [...text.matchAll(/Commit: '?([0-9a-f]{40})/g)].map((match) => match[1]);
const authors = new Set([...text.matchAll(/Author: (.*)/g)].map((match) => match[1]));
const head = `At ${time.datetime}: ${commits.length} commits by ${authors.size} author(s)`;
const summary = [head, ...commits, ""].join("\\n");
const path = FOLDER + "/summary.txt";
await write_file({ path, content: summary });
const listing = JSON.stringify(await list_directory({ path: FOLDER }));
console.log(`wrote ${summary.length} characters`);
globalThis.__codemode_result__ = {
  commits: commits.length,
  authors: authors.size,
  at: time.datetime,
  listed: listing.includes("summary.txt"),
};
"""


@pytest.fixture
def world(
    tmp_path: Path,
    server_time: ServerEntry,
    server_git: ServerEntry,
    server_filesystem: ServerEntry,
    git_repository: Path,
) -> Mapping[str, Any]:
    """The configuration file, the script for it, and the folder that it writes into."""
    folder = server_filesystem["args"][-1]
    servers = {"time": server_time, "git": server_git, "filesystem": server_filesystem}
    code = SCRIPT.replace("REPOSITORY", json.dumps(str(git_repository))).replace("FOLDER", json.dumps(folder))
    return {"config": write_config(tmp_path, servers), "code": code, "folder": Path(folder)}


def check(response: Mapping[str, Any], world: Mapping[str, Any], repository: Path) -> None:
    """The counts are those of the real repository, and the file holds its commits."""
    assert response["diagnostics"] == []
    result = response["result"]
    assert (result["commits"], result["authors"], result["listed"]) == (3, 1, True)
    written = (world["folder"] / "summary.txt").read_text("utf-8")
    head, *commits = written.splitlines()
    assert head == f"At {result['at']}: 3 commits by 1 author(s)"
    listed = subprocess.run(
        ["git", "log", "--format=%H"], cwd=repository, capture_output=True, text=True, check=True, timeout=120
    )
    assert commits == listed.stdout.split()
    assert datetime.fromisoformat(result["at"]).utcoffset() is not None
    assert [log["message"] for log in response["logs"]] == [f"wrote {len(written)} characters"]
    called = [(entry["serverId"], entry["toolName"]) for entry in response["toolTrace"]]
    assert sorted(called[:2]) == [("git", "git_log"), ("time", "get_current_time")]
    assert called[2:] == [("filesystem", "write_file"), ("filesystem", "list_directory")]
    assert all(entry["ok"] for entry in response["toolTrace"])


def test_from_the_shell(world: Mapping[str, Any], tmp_path: Path, git_repository: Path) -> None:
    outcome = subprocess.run(
        [
            str(forked_cellblock()),
            "run",
            "-",
            "--config",
            str(world["config"]),
            "--state-dir",
            str(tmp_path / "s"),
        ],
        input=world["code"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    check(json.loads(outcome.stdout), world, git_repository)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_through_an_mcp_client(
    world: Mapping[str, Any], tmp_path: Path, git_repository: Path, mode: str
) -> None:
    arguments = ["serve", "--stdio", "--config", str(world["config"]), "--state-dir", str(tmp_path / "s")]
    server = StdioServerParameters(command=str(forked_cellblock()), args=arguments)
    async with Client(server, mode=mode) as client:
        result = await within(client.call_tool("codemode.run", {"code": world["code"]}))
    assert not result.is_error
    await asyncio.to_thread(check, result.structured_content, world, git_repository)
