"""Fixtures with the `mcpServers` entry of each public MCP server that `scripts/test` installs.

An entry is what an MCP client's configuration file holds for a stdio server: `{"command": str, "args": [str],
"env": {str: str}}`. `env` holds only what that server needs on top of the variables that a client passes on.
Each fixture gives a new entry with its own data folder; no process is started here.
"""

import os
import subprocess
from pathlib import Path

import pytest

from support.entries import Entry as ServerEntry

SERVERS = Path(__file__).resolve().parents[2] / ".servers"
PYTHON_SERVERS = SERVERS / "venv" / "bin"
NODE = SERVERS / "node" / "bin" / "node"
NODE_SERVERS = SERVERS / "node" / "node_modules" / "@modelcontextprotocol"


def require(*programs: Path) -> None:
    """Fail in CI, skip elsewhere, when one of the installed programs is missing.

    CI must not turn green by skipping what it is there to prove; a single `pytest` call at a desk may.
    """
    missing = ", ".join(str(program) for program in programs if not program.exists())
    message = f"public MCP servers are not installed (no {missing}): run `bash scripts/test` once"
    if missing and os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    if missing:
        pytest.skip(message)


def node_entry(package: str, *args: str, env: dict[str, str] | None = None) -> ServerEntry:
    """Return the entry of the npm server `@modelcontextprotocol/<package>`."""
    script = NODE_SERVERS / package / "dist" / "index.js"
    require(NODE, script)
    return {"command": str(NODE), "args": [str(script), *args], "env": env or {}}


def python_entry(program: str, *args: str) -> ServerEntry:
    """Return the entry of a Python server by the name of its console script."""
    path = PYTHON_SERVERS / program
    require(path)
    return {"command": str(path), "args": list(args), "env": {}}


@pytest.fixture
def server_everything() -> ServerEntry:
    """The reference server with a tool for every kind of result (text, image, structured, annotated …)."""
    return node_entry("server-everything", "stdio")


@pytest.fixture
def server_filesystem(tmp_path: Path) -> ServerEntry:
    """Files under `tmp_path/files` (two files to begin with); the folder is the entry's last argument."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "hello.txt").write_text("Hello from a file.\n", encoding="utf-8")
    (folder / "numbers.csv").write_text("n,square\n1,1\n2,4\n3,9\n", encoding="utf-8")
    return node_entry("server-filesystem", str(folder))


@pytest.fixture
def server_memory(tmp_path: Path) -> ServerEntry:
    """An empty knowledge graph, kept in `tmp_path/memory.jsonl`."""
    return node_entry("server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})


@pytest.fixture
def server_time() -> ServerEntry:
    """Current time and conversion between zones, with UTC as the local zone wherever the test runs."""
    return python_entry("mcp-server-time", "--local-timezone=UTC")


@pytest.fixture
def git_repository(tmp_path: Path) -> Path:
    """A git repository with three commits on `main` by a fixed author at fixed times; its tree is clean."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    for number, (name, content, message) in enumerate(
        [
            ("README.md", "# Fruit\n", "Add a README"),
            ("apples.txt", "Boskoop\nElstar\n", "List two apples"),
            ("apples.txt", "Boskoop\nElstar\nTopaz\n", "Add Topaz"),
        ]
    ):
        (repository / name).write_text(content, encoding="utf-8")
        git(repository, "add", name)
        git(repository, "commit", "--quiet", "--message", message, day=number + 1)
    return repository


@pytest.fixture
def server_git(git_repository: Path) -> ServerEntry:
    """Git tools for the repository of the `git_repository` fixture."""
    return python_entry("mcp-server-git", "--repository", str(git_repository))


def git(repository: Path, *args: str, day: int = 1) -> None:
    # Nobody's own git settings (hooks, signing, another default branch) may change what is made here.
    who, when = ("user.name=Test Author", "user.email=author@example.com"), f"2025-03-0{day}T12:00:00+00:00"
    own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    env = {"PATH": os.environ["PATH"], "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, **own}
    command = ["git", "-c", who[0], "-c", who[1], *args]
    subprocess.run(command, cwd=repository, env=env, check=True, capture_output=True)
