"""What each client's file says of its servers, in our words: transports, times, restrictions, and what is left; what
becomes of each server, and what is taken for a secret."""

import json
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.config_file import OwnFile
from cellblock.app.cli.importing.entries import Found, find_servers
from cellblock.app.cli.importing.plan import (
    Plan,
    Secrets,
    add_servers,
    looks_secret,
    make_plan,
    runs_cellblock,
)
from cellblock.app.config.load import load_settings, parse_settings
from cellblock.app.config.references import Resolver

CODEX = """
[mcp_servers.docs]
command = "docs"
args = ["${HOME}", "x"]
env = { LEVEL = "1" }
env_vars = ["PASSED", { name = "OTHER", source = "local" }]
cwd = "/srv"
startup_timeout_sec = 20.5
tool_timeout_sec = 90
enabled_tools = ["read", "write"]
disabled_tools = ["write"]
default_tools_approval_mode = "prompt"
scopes = ["a"]

[mcp_servers.docs.tools.read]
approval_mode = "approve"

[mcp_servers.web]
url = "https://web.example/mcp"
bearer_token_env_var = "WEB_TOKEN"
http_headers = { X-Team = "a" }
env_http_headers = { X-Key = "WEB_KEY" }
enabled = false

[mcp_servers.odd]
command = "odd"
tools = { x = { limit = 3 } }
"""

ZED = """{ // mine
  "agent": {
    "tool_permissions": {"tools": {
      "mcp:fs:delete": {"default": "deny"}, "mcp:fs:write": {"default": "confirm"}, "terminal": {"default": "deny"}}},
  },
  "context_servers": {
    "fs": {"source": "custom", "command": "fs", "args": ["${X}"], "env": {}, "timeout": 90},
    "old": {"command": {"path": "old", "args": ["a"], "env": {"A": "1"}}, "enabled": false, "timeout": 90000},
    "web": {"url": "https://web.example/mcp", "headers": {"X": "1"}},
    "ext": {"source": "extension", "settings": {}},
  },
}"""

OPENCODE = """{
  "mcp": {
    "git hub": {"type": "local", "command": ["npx", "gh"], "environment": {"T": "{env:GH}"}, "timeout": 9000},
    "web": {"type": "remote", "url": "https://web.example/mcp", "headers": {"A": "{file:./key}"}, "enabled": false},
    "few": {"type": "local", "command": ["few"], "oauth": {"scope": "x"}}
  },
  "tools": {"git_hub_delete*": false, "bash": false, "few*": false, "few_read": true},
  "permission": {"git_hub_push": "ask", "edit": "ask"}
}"""

OPENCODE_2 = """{
  "mcp": {"servers": {"a": {
    "type": "local", "command": ["a"], "disabled": true, "cwd": "/srv",
    "timeout": {"startup": 5000, "request": 7000}}}},
  "permission": "ask"
}"""

GOOSE = """
extensions:
  developer: {enabled: true, type: builtin, name: developer}
  gh: # mine
    enabled: true
    type: stdio
    cmd: npx
    args: [gh]
    envs: {LEVEL: '1'}
    env_keys: [GH_TOKEN]
    timeout: 300
    available_tools: [read]
  web:
    enabled: false
    type: streamable_http
    uri: https://web.example/mcp
    headers: {Authorization: Bearer $WEB_TOKEN}
    available_tools: []
  own: {enabled: true, type: inline_python, code: 'x'}
"""

GEMINI = """{
  "mcp": {"excluded": ["off"]},
  "mcpServers": {
    "a": {"command": "a", "env": {"K": "$MY_KEY"}, "timeout": 9000, "trust": true,
      "includeTools": ["read", "run(ls)"], "excludeTools": ["write"]},
    "off": {"httpUrl": "https://off.example/mcp", "oauth": {"enabled": true}}
  }
}"""


CURSOR = """{
  "mcpServers": {
    "a": {"command": "a", "alwaysAllow": ["x"], "auth": {"CLIENT_ID": "y"}, "timeout": 60},
    "b": {"command": "b", "excludeTools": ["x"], "disabledTools": ["y"]}
  }
}"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    return tmp_path


def read(home: Path, client: str, files: Mapping[str, str]) -> dict[str, Found]:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    search = find_servers([client], home / "project")
    assert search.unreadable == {}
    return {found.name: found for found in search.servers}


def planned(found: Mapping[str, Found]) -> tuple[Plan, dict[str, Any]]:
    plan = make_plan([*found.values()], {})
    return plan, {name: dict(entry) for name, entry in plan.added.items()}


@pytest.mark.parametrize(
    ("client", "file", "text", "added", "bounds", "steps"),
    [
        (
            "codex",
            ".codex/config.toml",
            CODEX,
            {
                "docs": {
                    "command": "docs",
                    "args": ["$${HOME}", "x"],
                    "env": {"PASSED": "${env:PASSED:-}", "OTHER": "${env:OTHER:-}", "LEVEL": "1"},
                    "cwd": "/srv",
                    "enabledTools": ["read", "write"],
                    "disabledTools": ["write"],
                    "autoApprove": ["read"],
                },
                "web": {
                    "url": "https://web.example/mcp",
                    "headers": {
                        "X-Team": "a",
                        "X-Key": "${env:WEB_KEY}",
                        "Authorization": "Bearer ${env:WEB_TOKEN}",
                    },
                    "disabled": True,
                },
            },
            {"connect_timeout_ms": {"docs": 20_500}, "call_timeout_ms": {"docs": 90_000}},
            {
                0: {"found.left": ["scopes"], "found.path": ("mcp_servers", "docs")},
                2: {
                    "fate": "unusable",
                    "why": "tools.x: this may restrict tools, and Cellblock does not know how",
                },
            },
        ),
        (
            "zed",
            ".config/zed/settings.json",
            ZED,
            {
                "fs": {
                    "command": "fs",
                    "args": ["$${X}"],
                    "env": {},
                    "disabledTools": ["delete"],
                    "askTools": ["*"],
                },
                "old": {"command": "old", "args": ["a"], "env": {"A": "1"}, "disabled": True},
                "web": {"url": "https://web.example/mcp", "headers": {"X": "1"}},
            },
            {"call_timeout_ms": {"fs": 90_000, "old": 90_000}},
            {3: {"why": "an extension of Zed starts it"}},
        ),
        (
            "opencode",
            ".config/opencode/opencode.json",
            OPENCODE,
            {
                "git hub": {
                    "command": "npx",
                    "args": ["gh"],
                    "env": {"T": "${env:GH}"},
                    "askTools": ["*"],
                },
                "web": {
                    "url": "https://web.example/mcp",
                    "headers": {"A": "${file:HOME/.config/opencode/key}"},
                    "disabled": True,
                },
                "few": {"command": "few", "args": [], "askTools": ["*"]},
            },
            {"connect_timeout_ms": {"git hub": 9000}},
            {2: {"found.left": ["oauth"]}},
        ),
        (
            "opencode",
            "project/opencode.json",
            OPENCODE_2,
            {"a": {"command": "a", "args": [], "cwd": "/srv", "disabled": True, "askTools": ["*"]}},
            {"connect_timeout_ms": {"a": 5000}, "call_timeout_ms": {"a": 7000}},
            {0: {"found.path": ("mcp", "servers", "a")}},
        ),
        (
            "goose",
            ".config/goose/config.yaml",
            GOOSE,
            {
                "gh": {
                    "command": "npx",
                    "args": ["gh"],
                    "env": {"GH_TOKEN": "${env:GH_TOKEN}", "LEVEL": "1"},
                    "enabledTools": ["read"],
                },
                "web": {
                    "url": "https://web.example/mcp",
                    "headers": {"Authorization": "Bearer ${WEB_TOKEN}"},
                    "type": "http",
                    "disabled": True,
                },
            },
            {"call_timeout_ms": {"gh": 300_000}},
            {2: {"why": "only goose itself runs the type inline_python"}},
        ),
        (
            "gemini",
            ".gemini/settings.json",
            GEMINI,
            {
                "a": {
                    "command": "a",
                    "env": {"K": "${MY_KEY}"},
                    "enabledTools": ["read", "run(ls)"],
                    "disabledTools": ["write"],
                },
                "off": {"url": "https://off.example/mcp", "disabled": True},
            },
            {"call_timeout_ms": {"a": 9000}},
            {1: {"found.left": ["oauth"]}},
        ),
        (
            "cursor",
            ".cursor/mcp.json",
            CURSOR,
            {"a": {"command": "a", "autoApprove": ["x"]}},
            {},
            {
                0: {"found.left": ["auth", "timeout"]},
                1: {"fate": "unusable", "why": "disabledTools: this is said twice"},
            },
        ),
    ],
    ids=["codex", "zed", "opencode", "opencode 2", "goose", "gemini", "cursor"],
)
def test_a_client(
    home: Path,
    client: str,
    file: str,
    text: str,
    added: dict[str, Any],
    bounds: dict[str, Any],
    steps: dict[int, dict[str, Any]],
) -> None:
    """`steps` are facts of some servers by their place in the plan; HOME stands for the user's folder."""
    plan, found = planned(read(home, client, {file: text}))
    assert json.loads(json.dumps(found).replace(str(home), "HOME")) == added
    assert plan.bounds == bounds
    for place, facts in steps.items():
        assert {name: attrgetter(name)(plan.steps[place]) for name in facts} == facts


def test_claude_code(home: Path) -> None:
    project = home / "project"
    own = {
        "disabledMcpServers": ["b"],
        "disabledMcpjsonServers": ["c"],
        "mcpServers": {"b": {"command": "b"}},
    }
    files = {
        ".claude.json": json.dumps({"projects": {str(project): own}}),
        "project/.mcp.json": '{"mcpServers": {"c": {"command": "c", "timeout": 5000, "envFile": ".env"}, '
        '"d": {"command": "d", "cwd": "sub"}, "e": {"command": "e"}}}',
        "project/.claude/settings.local.json": '{"disabledMcpjsonServers": ["e"]}',
    }
    plan, added = planned(read(home, "claude-code", files))
    assert added == {
        "b": {"command": "b", "cwd": str(project), "disabled": True},
        "c": {"command": "c", "cwd": str(project), "envFile": str(project / ".env"), "disabled": True},
        "d": {"command": "d", "cwd": str(project / "sub")},
        "e": {"command": "e", "cwd": str(project), "disabled": True},
    }
    assert plan.bounds == {"call_timeout_ms": {"c": 5000}}


def test_what_is_written_says_the_same(home: Path) -> None:
    found = read(home, "codex", {".codex/config.toml": CODEX})
    found |= read(home, "goose", {".config/goose/config.yaml": GOOSE.replace("gh:", "hub:")})
    file = home / "c.json"
    file.write_text('{\n  // mine\n  "cellblock": {"pool": {"warm": 1}}\n}\n')
    add_servers(OwnFile(file), planned(found)[0])
    settings = load_settings(file)
    assert "// mine" in file.read_text()
    bounds = settings.cellblock.upstream.for_server("docs")
    assert (bounds.connect_timeout_ms, bounds.call_timeout_ms) == (20_500, 90_000)
    docs = settings.servers["docs"]
    assert docs.args[0] == "${HOME}" and docs.env["OTHER"] == ""
    assert docs.refusal("write", "write") == "disabledTools" and docs.asks_about("write", "write")
    assert settings.servers["hub"].missing == "the environment variable GH_TOKEN is not set"


def server_found(name: str, **entry: Any) -> Found:
    return Found(name, entry, "cursor", Path("/c.json"), ("mcpServers", name), {}, None)


RUN_CELLBLOCK: list[dict[str, Any]] = [
    {"command": "/opt/x/bin/cellblock", "args": ["connect"]},
    {"command": "uvx", "args": ["cellblock[search]>=0.1", "connect"]},
    {"command": "/usr/bin/uvx", "args": ["--from", "./cellblock.whl", "--offline", "cellblock"]},
    {"command": "uv", "args": ["tool", "run", "cellblock"]},
    {"command": "pipx", "args": ["run", "cellblock", "serve", "--stdio"]},
    {"command": "/venv/bin/python3.12", "args": ["-I", "-m", "cellblock.cli", "connect"]},
    {"command": "env", "args": ["A=b", "cellblock", "connect"]},
    {"args": ["cellblock", "connect"]},
    {"url": "http://127.0.0.1:7433/mcp"},
    {"url": "http://localhost:7433/mcp"},
    {"url": "http://LocalHost:7433/"},
    {"url": "https://[::1]:7433/mcp"},
    {"url": "http://127.1.2.3:7433/mcp"},
]
RUN_OTHERS: list[dict[str, Any]] = [
    {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/cellblock"]},
    {"command": "uvx", "args": ["mcp-server-git", "--repository", "cellblock"]},
    {"command": "uv", "args": ["run", "server.py", "cellblock"]},
    {"command": "python", "args": ["/srv/cellblock/server.py"]},
    {"command": "/home/me/cellblock/server"},
    {"command": "cellblock-mcp"},
    {"url": "http://127.0.0.1:7434/mcp"},
    {"url": "http://cellblock.example:7433/mcp"},
    {"url": "http://127.0.0.1:7433x/mcp"},
    {},
]
"""What only has the name in it."""


@pytest.mark.parametrize(
    ("entry", "known"), [*((one, True) for one in RUN_CELLBLOCK), *((one, False) for one in RUN_OTHERS)]
)
def test_cellblock_itself_is_known(entry: dict[str, Any], known: bool) -> None:
    assert runs_cellblock(entry) is known


def test_a_slip_is_not_imported_and_editors_keys_are_left_behind() -> None:
    servers = [
        server_found("slipped", command="x", argss=["y"]),
        server_found("well", command="x", alwaysAllow=[], learntIn2027=True, _args=[]),
    ]
    slipped, well = make_plan(servers, {}).steps
    assert (slipped.fate, slipped.why) == (
        "unusable",
        "argss: unknown key. Did you mean args? Rename it, or take it out.",
    )
    assert (well.fate, well.entry) == ("added", {"command": "x"})
    parse_settings({"mcpServers": {"well": well.entry}})


def test_a_server_without_a_name_keeps_none_of_the_others_back() -> None:
    nameless, well = make_plan([server_found(" ", command="x"), server_found("well", command="x")], {}).steps
    assert (nameless.fate, nameless.why, well.fate) == ("unusable", "it has no name", "added")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GITHUB_TOKEN", "x1", True),
        ("X", "ghp_0123456789abcdef", True),
        ("X", "eyJhbGciOiJI.eyJzdWIiOiIx.abc", True),
        ("X", "0123456789abcdef0123456789abcdef", True),
        ("DATABASE", "postgres://u:pw@h/x", True),
        ("API_KEY", "${env:KEY}", False),
        ("Authorization", "Bearer ${KEY}", False),
        ("Authorization", "Bearer ${KEY:-x} sk-0123456789abcdef", True),
        ("KEY_FILE", "/home/me/.ssh/id", False),
        ("USE_AUTH", "true", False),
        ("TOKEN_LIMIT", "4096", False),
        ("TOKEN", "", False),
        ("HOME", "/home/me", False),
        ("PACKAGE", "a-package-with-a-long-name-and-version-2024", False),
        ("X", "a" * 1_000_000, False),
        ("X", "eyJ" * 300_000, False),
        ("X", "eyJ-" * 300_000, False),
        ("LOG_LEVEL", "debug", False),
        ("PACKAGE", "@modelcontextprotocol/server-filesystem", False),
        ("URL", "https://example.com/a/long/path/without/any/secret", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_looks_like_a_secret(name: str, value: str, expected: bool) -> None:
    assert looks_secret(name, value) is expected


ENTRIES: dict[str, dict[str, Any]] = {
    "one": {"env": {"TOKEN": "first-1", "LEVEL": "debug"}, "args": ["--token=abc-def", "-v", "name"]},
    "two": {"env": {"TOKEN": "second-2"}},
    "three": {"env": {"TOKEN": "first-1"}},
    "four": {"url": "https://me:p%40ss-word@x.example/mcp?token=a%2Bb-c&token=other-1&q=1"},
    "five": {"headers": {"X-Api-Key": "k-1", "Accept": "x", "Authorization": "Basic dXNlcjpwYXNz"}},
    "six": {"args": ["--url", "https://u:pw-12@h/?key=secret-5", 7]},
}


def test_references_stand_for_what_was_there() -> None:
    secrets = Secrets()
    hidden = {name: secrets.taken_out(name, entry)[0] for name, entry in ENTRIES.items()}
    assert [hidden[name]["env"]["TOKEN"] for name in ("one", "two", "three")] == [
        "${env:TOKEN}",
        "${env:TWO_TOKEN}",
        "${env:TOKEN}",
    ]
    assert not any(secret in str(hidden) for secret in secrets.variables.values())
    resolver = Resolver(None, environment=secrets.variables)
    assert (resolver.resolve(hidden, ()), resolver.problems) == (ENTRIES, [])
