"""`config check`, and what commands about a daemon read: problems with their exact places, and no secrets."""

import json
import subprocess
from pathlib import Path

import pytest

from cellblock.app.cli.config_check import check_config
from cellblock.app.config.load import state_dir_in
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import Settings
from support.cellblock_zygote import forked_cellblock

BROKEN = """{
  "mcpServers": {
    "a": {"comand": "x", "command": "npx", "args": ["${env:NOT_SET_ANYWHERE}"]},
    "b": {"url": 5, "alwaysAllow": []},
    "b": {"url": "http://x", "envFile": "x", "headers": {"A": "hunter2-secret"}}
  },
  "cellblock": {"pol": {}, "pool": {"warm": -1}, "isolation": "perhaps",
    "limits": {"timeout_ms": [3, -1]}}
}"""

POLICY = """{"mcpServers": {"My Files": {"command": "x"}}, "cellblock": {"policy": {
  "default": {"tools": ["my-files.*", "nope.*", "local.x", "*.y"], "budgets": {"my-file.a": 3}},
  "clients": {"cli": {"approve": ["nope.a"], "arguments": {"my-files.b": {"type": 5}}}}}}}"""

BROKEN_TOML = """
[mcpServers.a]
command = "npx"
args = ["x", "${env:NOT_SET_ANYWHERE}"]
[cellblock.pool]
warm = -1
caps = 1
[cellblock.limits]
timeout_ms = { default = 3, maximum = -1 }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.json"


def command(file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [forked_cellblock(), *words, "--config", file], capture_output=True, text=True, timeout=60, input=""
    )


@pytest.mark.parametrize(
    ("name", "text", "problems"),
    [
        (
            "c.json",
            BROKEN,
            [
                ("error", (3, 11), "mcpServers.a.comand"),
                ("warning", (3, 53), "mcpServers.a.args.0"),
                ("warning", (5, 5), "mcpServers.b"),
                ("warning", (5, 41), "mcpServers.b.envFile"),
                ("error", (7, 17), "cellblock.pol"),
                ("error", (7, 45), "cellblock.pool.warm"),
                ("error", (7, 63), "cellblock.isolation"),
                ("error", (8, 34), "cellblock.limits.timeout_ms.1"),
            ],
        ),
        (
            "c.toml",
            BROKEN_TOML,
            [
                ("warning", (4, 8), "mcpServers.a.args.1"),
                ("error", (6, 8), "cellblock.pool.warm"),
                ("error", (7, 1), "cellblock.pool.caps"),
                ("error", (9, 14), "cellblock.limits.timeout_ms.maximum"),
            ],
        ),
        (
            "c.json",
            POLICY,
            [
                ("error", (2, 39), "cellblock.policy.default.tools.1"),
                ("error", (2, 80), "cellblock.policy.default.budgets.my-file.a"),
                ("error", (3, 35), "cellblock.policy.clients.cli.approve.0"),
                ("error", (3, 74), "cellblock.policy.clients.cli.arguments.my-files.b"),
            ],
        ),
        (
            "c.json",
            """{"mcpServers": {"a": {"command": 5}}, "cellblock": {"pool": {"warm": -1},
  "pins": {"b": "warn"},
  "policy": {"default": {"tools": ["nope.*", "a.*"]}}}}""",
            [
                ("error", (1, 34), "mcpServers.a.command"),
                ("error", (1, 70), "cellblock.pool.warm"),
                ("error", (2, 12), "cellblock.pins.b"),
                ("error", (3, 36), "cellblock.policy.default.tools.0"),
            ],
        ),
        ("c.json", '{"mcpServers": {\n  "a" {}}}', [("error", (2, 7), "")]),
        ("c.json", "{}", [("warning", (1, 1), "")]),
        # A server with the name of the Python tools.
        (
            "c.json",
            '{"servers": {"Local": {"command": "x"}}, "cellblock": {"tools": ["no_such_module"]}}',
            [("error", (1, 14), "servers.Local")],
        ),
        ("c.json", '{"servers": {"local": {"command": "x"}}}', []),
    ],
    ids=["json", "toml", "policy", "a policy beside others", "syntax", "empty", "a tools' server", "alone"],
)
def test_all_problems_of_a_file_with_their_places(
    tmp_path: Path, name: str, text: str, problems: list[tuple[str, tuple[int, int], str]]
) -> None:
    (tmp_path / name).write_text(text)
    found = check_config(tmp_path / name).problems
    assert [(problem.severity, problem.position, problem.place) for problem in found] == problems


def test_a_slip_comes_with_what_was_meant(file: Path) -> None:
    file.write_text(BROKEN)
    hints = {problem.place: problem.hint for problem in check_config(file).problems}
    assert hints["mcpServers.a.comand"] == "Did you mean command? Rename it, or take it out."
    assert hints["cellblock.pol"] == "Did you mean pool?"


def test_a_sound_file_shows_its_servers_and_no_value(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tok-from-env")
    entries = {
        "a": {"command": "x", "env": {"T": "${SOME_TOKEN}"}},
        "b": {"url": "https://u:pw-in-url@x/", "type": "sse"},
        "c": {"url": "https://x/", "disabled": True},
    }
    file.write_text(json.dumps({"mcpServers": entries}))
    checked = check_config(file)
    assert not checked.errors and checked.problems == []
    assert checked.servers == {"a": "stdio", "b": "sse", "c": "disabled"}
    shown = json.dumps(checked.as_json())
    assert "tok-from-env" not in shown and "pw-in-url" not in shown


def test_a_file_that_is_not_there(file: Path) -> None:
    with pytest.raises(ConfigError, match="Cannot read"):
        check_config(file)


def test_the_command_prints_places_and_no_secrets(file: Path) -> None:
    file.write_text(BROKEN)
    done = command(file, "config", "check")
    assert (done.returncode, done.stderr) == (1, "")
    assert f"{file}:7:17: error: cellblock.pol: unknown key. Did you mean pool?\n" in done.stdout
    assert done.stdout.endswith("5 errors\n") and "hunter2" not in done.stdout and "\x1b" not in done.stdout
    machine = command(file, "config", "check", "--json")
    report = json.loads(machine.stdout)
    assert machine.returncode == 1 and report["ok"] is False and len(report["problems"]) == 8
    # Every other command says the same errors, all of them, and where they are.
    other = command(file, "types")
    assert other.returncode == 2 and other.stdout == ""
    assert f"{file}:8:34: cellblock.limits.timeout_ms.1" in other.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://x/mcp", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("localhost:8000/mcp", "http:// or https://"),
        ("", "http:// or https://"),
        ("http://x:99999/", "this is no URL"),
        ("http://[::1/mcp", "this is no URL"),
    ],
)
def test_a_url_that_cannot_be_reached_is_an_error_at_its_place(file: Path, url: str, said: str) -> None:
    file.write_text(
        f'{{"mcpServers": {{"a": {{"url": "{url}?key=hunter2-secret"}}}}}}'
        if url
        else '{"mcpServers": {"a": {"url": ""}}}'
    )
    (problem,) = check_config(file).problems
    assert (problem.severity, problem.place, problem.position) == ("error", "mcpServers.a.url", (1, 30))
    assert said in problem.message and "hunter2" not in problem.message + problem.hint


def test_a_disabled_servers_url_may_refer_to_what_is_not_there(file: Path) -> None:
    file.write_text('{"mcpServers": {"a": {"url": "${env:NOT_SET_ANYWHERE}", "disabled": true}}}')
    assert not check_config(file).errors


def test_what_no_program_can_be_given_is_refused_and_not_quoted(file: Path) -> None:
    entries = {
        "a": {"command": ""},
        "b": {"command": "x\0y", "args": ["-v", "hunter2\0"], "env": {"T": "hunter2\0"}, "cwd": "/\0"},
        "c": {"command": "x", "env": {"A=B": "hunter2"}},
    }
    file.write_text(json.dumps({"mcpServers": entries}))
    checked = check_config(file)
    assert [problem.place for problem in checked.problems] == [
        "mcpServers.a.command",
        "mcpServers.b.command",
        "mcpServers.b.args.1",
        "mcpServers.b.env.T",
        "mcpServers.b.cwd",
        "mcpServers.c.env",
    ]
    said = [problem.message for problem in checked.problems]
    assert "empty" in said[0] and "=" in said[5] and all("NUL" in one for one in said[1:])
    assert "hunter2" not in str(checked.as_json())


def test_a_policy_that_no_broker_starts_with(file: Path) -> None:
    file.write_text(POLICY)
    checked = check_config(file)
    assert "'nope.*' names no server" in checked.problems[0].message
    assert checked.problems[1].hint == "Did you mean my-files?"
    with pytest.raises(ConfigError, match="4 problems"):
        checked.usable()


@pytest.mark.parametrize(
    "wrong", ['{"default": {"tools": ["${env:TOOLS}"]}}', '{"default": {"tols": ["nope.*"]}}']
)
def test_what_a_wrong_policy_refers_to_is_not_judged(file: Path, wrong: str) -> None:
    """What a reference of it stands for is not known beside errors elsewhere, and a policy with errors has those
    alone."""
    file.write_text('{"mcpServers": {"a": {"command": 5}}, "cellblock": {"policy": ' + wrong + "}}")
    assert not any("names no server" in problem.message for problem in check_config(file).problems)


def test_a_terminal_does_nothing_that_a_servers_name_says(file: Path) -> None:
    file.write_text('{"mcpServers": {"a\\u001b[2Jb": {"command": "x"}, "c\\nd": {"command": "x"}}}')
    done = command(file, "config", "check")
    assert done.stdout == f'{file}: fine. Servers: "a\\u001b[2Jb" (stdio), "c\\nd" (stdio)\n'


SECRETS = {"w": {"url": "https://w/mcp", "headers": {"A": "Bearer ${env:NOT_SET_ANYWHERE}"}}}


def test_a_state_dir_is_read_whatever_else_is_wrong(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_HERE", str(tmp_path / "state"))
    section = {"state_dir": "${env:STATE_HERE}", "pol": {}, "pool": {"warm": "${env:NOT_SET_ANYWHERE}"}}
    servers = {"a": {"comand": "x"}, **SECRETS}
    file.write_text(json.dumps({"mcpServers": servers, "cellblock": section}))
    assert state_dir_in(file) == tmp_path / "state"
    file.write_text('{"cellblock": {"state_dir": null}}')
    assert state_dir_in(file) == Settings().state_dir


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cellblock": {"state_dir": "${env:NOT_SET_ANYWHERE}"}}', r"c\.json:1:\d+: cellblock\.state_dir"),
        ('{"cellblock": {"state_dir": 5}}', r"c\.json:1:\d+: cellblock\.state_dir"),
        ('{"cellblock": {', r"c\.json:1:16: not valid JSON"),
        (None, r"c\.json"),
    ],
    ids=["a variable that is not set", "no text", "no JSON", "no file"],
)
def test_a_state_dir_that_is_not_known_is_an_error(file: Path, text: str | None, said: str) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        state_dir_in(file)
