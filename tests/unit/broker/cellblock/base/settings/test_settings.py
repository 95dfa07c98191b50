"""Settings: what is read, what is left alone, and errors that name the place."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import load_settings, parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import ConfigProblems
from cellblock.base.settings.sections import LimitRange, OutputSettings, value_for
from cellblock.base.settings.server import ServerAuthSettings
from cellblock.base.settings.settings import (
    MIB,
    CellblockSettings,
    HostSettings,
    LimitSettings,
    Settings,
)
from cellblock.base.settings.state import StateSettings


def test_defaults_without_a_file() -> None:
    settings = load_settings(None)
    assert settings.servers == {}
    assert settings.cellblock == CellblockSettings()
    assert settings.state_dir.name == "cellblock"
    hosts, frontend = settings.cellblock.hosts, settings.cellblock.frontend
    assert (hosts.local, hosts.listen, frontend.inline_bytes) == (True, None, None)


def test_every_default_limit_is_within_its_maximum() -> None:
    for _, limit in LimitSettings():
        assert 0 < limit.default <= limit.maximum


WHOLE: dict[str, Any] = {
    "mcpServers": {
        "files": {"command": "npx", "args": ["-y", "server"], "env": {"A": "b"}, "disabled": True},
        "web": {"url": "https://example.com/mcp", "headers": {"X": "y"}, "type": "sse", "autoApprove": []},
    },
    "cellblock": {
        "pool": {"warm": 1, "capacity": 2},
        "limits": {"timeout_ms": [5, 10]},
        "state_dir": "/var/lib/x",
        "tools": ["my.tools"],
    },
    "theme": "dark",
}

TOML = """
theme = "dark"
[mcpServers.files]
command = "npx"
args = ["-y", "server"]
env = { A = "b" }
disabled = true
[mcpServers.web]
url = "https://example.com/mcp"
headers = { X = "y" }
type = "sse"
autoApprove = []
[cellblock]
state_dir = "/var/lib/x"
tools = ["my.tools"]
[cellblock.pool]
warm = 1
capacity = 2
[cellblock.limits]
timeout_ms = [5, 10]
"""


def test_json_and_toml_say_the_same(tmp_path: Path) -> None:
    as_json, as_toml = tmp_path / "a.json", tmp_path / "a.TOML"
    as_json.write_text(json.dumps(WHOLE))
    as_toml.write_text(TOML)
    settings = load_settings(as_json)
    assert load_settings(str(as_toml)).model_dump() == settings.model_dump()
    assert {name: server.model_dump(exclude_defaults=True) for name, server in settings.servers.items()} == {
        "files": {"command": "npx", "args": ["-y", "server"], "env": {"A": "b"}, "disabled": True},
        "web": {"url": "https://example.com/mcp", "headers": {"X": "y"}, "type": "sse"},
    }
    assert settings.cellblock.limits == LimitSettings(timeout_ms=LimitRange(default=5, maximum=10))
    assert settings.state_dir == Path("/var/lib/x")


def test_the_state_directory_can_be_overridden(tmp_path: Path) -> None:
    settings = parse_settings(WHOLE)
    assert settings.with_state_dir(None) is settings
    moved = settings.with_state_dir(tmp_path)
    assert moved.state_dir == tmp_path and moved.servers == settings.servers
    assert settings.with_state_dir(Path("here")).state_dir == Path.cwd() / "here"
    assert settings.state_dir == Path("/var/lib/x")


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("c.json", b"{", "not valid"),
        ("c.json", b"", "is empty"),
        ("c.json", b"[]", "holds no object"),
        ("c.json", b'"x"', "holds no object"),
        ("c.json", b"[" * 100_000, "not valid"),
        ("c.json", b"\xff\xfe", "Cannot read"),
        ("c.toml", b"{}", "not valid"),
        ("missing.json", None, "Cannot read"),
        (".", None, "Cannot read"),
    ],
)
def test_files_that_cannot_be_read(name: str, content: bytes | None, word: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as caught:
        load_settings(file)
    assert str(file) in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"mcpServers": []}, "mcpServers"),
        ({"mcpServers": {"a": {}}}, "mcpServers.a"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://y"}}}, "mcpServers.a"),
        ({"mcpServers": {"a": {"command": 1}}}, "mcpServers.a.command"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "mcpServers.a.args"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}, "mcpServers.a.env.A"),
        ({"mcpServers": {"a": {"url": "http://y", "type": "carrier pigeon"}}}, "mcpServers.a.type"),
        ({"cellblock": {"pol": {}}}, "cellblock.pol"),
        ({"cellblock": {"pool": {"warm": -1}}}, "cellblock.pool.warm"),
        ({"cellblock": {"pool": {"capacity": 0}}}, "cellblock.pool.capacity"),
        ({"cellblock": {"max_message_bytes": 1}}, "cellblock.max_message_bytes"),
        ({"cellblock": {"pins": "ask"}}, "cellblock.pins"),
        ({"cellblock": {"isolation": "perhaps"}}, "cellblock.isolation"),
        ({"cellblock": {"isolation": {"mode": "of"}}}, "cellblock.isolation"),
        ({"cellblock": {"frontend": {"inline_bytes": 10}}}, "cellblock.frontend.inline_bytes"),
        (
            {"mcpServers": {"a": {"command": "x"}}, "cellblock": {"pins": {"a": "never"}}},
            "cellblock.pins.a",
        ),
        ({"cellblock": {"dashboard": {"enabled": "no"}}}, "cellblock.dashboard"),
        ({"cellblock": {"http": {"allowed_hosts": ["ftp://a"]}}}, "cellblock.http.allowed_hosts.0"),
        ({"cellblock": {"http": {"allowed_hosts": ["https://a/b"]}}}, "cellblock.http.allowed_hosts.0"),
        ({"cellblock": {"http": {"allowed_hosts": ["me@a"]}}}, "cellblock.http.allowed_hosts.0"),
        ({"cellblock": {"http": {"allowed_origins": ["a"]}}}, "cellblock.http.allowed_origins"),
        # A broker's name goes into ids, and into rules of a balancer.
        *(
            ({"cellblock": {"state": {"broker": name}}}, "cellblock.state.broker")
            for name in ("", "-a", "a.b", "a b", "a/b", "ä", "a\n", "a" * 64, "a:b", "$${x}", "<BACKEND>")
        ),
    ],
    ids=str,
)
def test_errors_name_the_place(raw: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_settings(raw, source="my.json")
    assert caught.value.message.startswith(f"my.json: {place}: ")
    assert place in caught.value.hint or "Did you mean" in caught.value.hint


def test_a_server_has_a_name() -> None:
    with pytest.raises(ConfigProblems) as raised:
        parse_settings({"mcpServers": {name: {"command": "x"} for name in ("a", "", " ", "../x")}})
    assert [problem.text("f") for problem in raised.value.problems] == [
        f'f: mcpServers."{name}": a server has no name here.' for name in ("", " ")
    ]


def test_pins_have_a_reaction_for_all_and_for_one() -> None:
    servers = {"a": {"command": "x"}, "b": {"command": "x"}}
    pins = {"*": "off", "b": "quarantine"}
    pins = parse_settings({"mcpServers": servers, "cellblock": {"pins": pins}}).cellblock.pins
    assert (value_for("a", pins), value_for("b", pins)) == ("off", "quarantine")
    assert value_for("anything", CellblockSettings().pins) == "auto"


@pytest.mark.parametrize(
    ("given", "default", "maximum"),
    [
        (5_000, 5_000, 600_000),
        (900_000, 900_000, 900_000),
        ({"default": 5_000}, 5_000, 600_000),
        ({"default": 900_000}, 900_000, 900_000),
        ({"maximum": 1_000}, 1_000, 1_000),
        ({"maximum": 700_000}, 55_000, 700_000),
        ({"default": 1, "maximum": 2}, 1, 2),
        ([1, 2], 1, 2),
    ],
)
def test_a_limit_is_a_number_or_a_pair_and_in_older_files_an_object(
    given: Any, default: int, maximum: int
) -> None:
    limit = parse_settings({"cellblock": {"limits": {"timeout_ms": given}}}).cellblock.limits.timeout_ms
    assert (limit.default, limit.maximum) == (default, maximum)


@pytest.mark.parametrize(
    "given",
    ["5s", True, -1, {}, {"defalt": 1}, {"default": 2, "maximum": 1}, {"default": "x"}, None, [1], [2, 1]],
)
def test_a_limit_that_is_neither_is_refused_with_its_place(given: Any) -> None:
    with pytest.raises(ConfigProblems, match=r"cellblock\.limits\.timeout_ms"):
        parse_settings({"cellblock": {"limits": {"timeout_ms": given}}})


MISPLACED = {
    ("cellblock.pins.trackr", "Did you mean tracker?"),
    ("cellblock.auth.servers.tracker", "Take it out: programs are given their secrets in env."),
    ("cellblock.auth.servers.wiki", "There are: tracker."),
    ("cellblock.upstream.call_timeout_ms.nope", "There are: tracker."),
    ("cellblock.schemas.learn.loca", "Did you mean local?"),
}


@pytest.mark.parametrize(
    ("more", "also"),
    [
        ({}, set[str]()),
        # pydantic looks at the whole only when each part is sound.
        (
            {"pol": {}, "pool": {"warm": -1}, "pins": {"*": "perhaps"}},
            {"cellblock.pol", "cellblock.pool.warm", "cellblock.pins.*"},
        ),
    ],
    ids=["alone", "beside others"],
)
def test_all_exceptions_for_servers_that_are_none_are_told_at_once(
    more: dict[str, Any], also: set[str]
) -> None:
    section: dict[str, Any] = {
        "auth": {"servers": {"tracker": {}, "wiki": {}}},
        "upstream": {"call_timeout_ms": {"nope": 5}},
        "schemas": {"learn": {"loca": False}},
        **more,
    }
    section["pins"] = {**more.get("pins", {}), "trackr": "warn"}
    with pytest.raises(ConfigProblems) as raised:
        parse_settings({"mcpServers": {"tracker": {"command": "x"}}, "cellblock": section})
    found = {(problem.place, problem.hint) for problem in raised.value.problems}
    assert found >= MISPLACED and len(raised.value.problems) == len(MISPLACED | also)
    assert {place for place, _ in found - MISPLACED} == also


SAME_USER: dict[str, Any] = {"command": "same-user"}
BOTH_KEYS: dict[str, Any] = {"key": "broker.key", "allowed_keys": {"box": "ab" * 32}}


def hosts_of(**hosts: Any) -> HostSettings:
    return parse_settings({"cellblock": {"hosts": hosts}}, source="my.json").cellblock.hosts


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:7070", "tcp://*:7070", "tcp://127.0.0.1:*", "tcp://[::]:7070"]
)
@pytest.mark.parametrize("local", [True, False])
def test_an_endpoint_with_keys_may_be_any_tcp_address(listen: str, local: bool) -> None:
    assert hosts_of(listen=listen, local=local, **BOTH_KEYS).listen == listen


def test_hosts_on_ray_need_no_key_of_yours() -> None:
    ray = SAME_USER | {"connect": ["dns://brokers:7070"]}
    ray = hosts_of(listen="tcp://0.0.0.0:7070", local=False, ray=ray).ray
    assert ray is not None and (ray.hosts, ray.options) == ((1, 8), {"resources": {"CPU": 2}})
    assert hosts_of(listen="tcp://0.0.0.0:7070", ray=SAME_USER, **BOTH_KEYS).ray is not None


@pytest.mark.parametrize(
    ("hosts", "place", "said"),
    [
        ({"listen": "tcp://0.0.0.0:7070"}, "cellblock.hosts", "`listen` needs `key`"),
        ({"listen": "tcp://127.0.0.1:7070"}, "cellblock.hosts", "cellblock keygen"),
        ({"listen": "tcp://h:1", "key": "k"}, "cellblock.hosts", "`listen` needs `allowed_keys`"),
        ({"listen": "tcp://h:1", "key": "k", "allowed_keys": {}}, "cellblock.hosts", "`allowed_keys`"),
        ({"listen": "ipc:///tmp/x", **BOTH_KEYS}, "cellblock.hosts", "tcp://HOST:PORT"),
        ({"listen": "tcp://h:99999", **BOTH_KEYS}, "cellblock.hosts", "tcp://HOST:PORT"),
        (
            {"listen": "tcp://h:1", "key": "k", "allowed_keys": {"a": "xyz"}},
            "cellblock.hosts.allowed_keys.a",
            "",
        ),
        ({"key": "k"}, "cellblock.hosts", "only with `listen`"),
        ({"local": False}, "cellblock.hosts", "no script could run"),
        ({"ray": SAME_USER}, "cellblock.hosts", "only with `listen`"),
        # Whoever can run jobs on the cluster would run code as the broker's user.
        ({"listen": "tcp://h:1", "ray": {}}, "cellblock.hosts.ray", 'write "same-user"'),
        (
            {"listen": "tcp://h:1", "ray": {"command": []}},
            "cellblock.hosts.ray.command",
            "`command` is needed",
        ),
        (
            {"listen": "tcp://h:1", "ray": {"command": "me"}},
            "cellblock.hosts.ray.command",
            'a list of texts or "same-user" is needed',
        ),
        (
            {"listen": "tcp://h:1", "ray": SAME_USER | {"hosts": [3, 2]}},
            "cellblock.hosts.ray.hosts",
            "min 3 is over max 2",
        ),
        (
            {"listen": "tcp://h:1", "ray": SAME_USER | {"connect": ["h:1"]}},
            "cellblock.hosts.ray.connect",
            "tcp://HOST:PORT",
        ),
        ({"listen": "tcp://h:1", "ray": SAME_USER | {"hosts": 0}}, "cellblock.hosts.ray.hosts", "[MIN, MAX]"),
        (
            {"listen": "tcp://h:1", "ray": SAME_USER | {"hosts": [1]}},
            "cellblock.hosts.ray.hosts",
            "[MIN, MAX]",
        ),
        (
            {"listen": "tcp://h:1", "ray": SAME_USER | {"options": {"resources": {"CPU": 0}}}},
            "cellblock.hosts.ray.options",
            "CPU is no number over 0",
        ),
        (
            {"listen": "tcp://h:1", "ray": SAME_USER | {"options": {"num_cpus": {}}}},
            "cellblock.hosts.ray.options.num_cpus",
            '"resources" or "runtime_env"',
        ),
        ({"lisen": "tcp://h:1"}, "cellblock.hosts.lisen", ""),
    ],
)
def test_what_is_wrong_with_hosts_is_named(hosts: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^my\.json: {re.escape(place)}: .*{re.escape(said)}"):
        hosts_of(**hosts)


KEY = base64.b64encode(bytes(range(32))).decode()

OTHER_KEY = base64.b64encode(bytes(range(32, 64))).decode()
SHARED = "postgresql://me:hunter2@db/cellblock?sslmode=verify-full"


def state(**section: Any) -> StateSettings:
    return parse_settings({"cellblock": {"state": section}}).cellblock.state


@pytest.mark.parametrize(
    ("section", "url", "keys"),
    [
        ({}, "sqlite:", ()),
        ({"key": KEY}, "sqlite:", (bytes(range(32)),)),
        ({"url": SHARED, "key": "${env:SHARED_KEY}"}, SHARED, (bytes(range(32)),)),
    ],
    ids=["files", "with a key", "shared, by a reference"],
)
def test_what_is_shared_has_a_key(
    section: dict[str, Any], url: str, keys: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED_KEY", KEY)
    made = state(**section)
    assert (made.url, made.keys, made.is_shared) == (url, keys, url == SHARED)


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"url": SHARED}, "state.key"),
        ({"url": SHARED, "key": "c2hvcnQ="}, "32 bytes"),
        ({"url": SHARED, "key": "no base64, hunter2"}, "32 bytes"),
        ({"url": "mysql://me:hunter2@db/x"}, "state.url"),
        ({"url": "postgres.example hunter2"}, "state.url"),
    ],
)
def test_what_cannot_be_used_is_told_without_its_value(section: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as said:
        state(**section)
    text = f"{said.value} {said.value.hint}"
    assert says in text and "hunter2" not in text and "c2hvcnQ" not in text


@pytest.mark.parametrize(
    ("host", "state", "name"),
    [
        ("db1", {"broker": "a-b_C"}, "a-b_C"),
        ("cellblock-broker-0", {}, "cellblock-broker-0"),
        ("pod.ns.svc", {}, "pod-ns-svc"),
        ("-._ä!-" + "x" * 80, {}, "x" * 63),
        ("…", {}, "broker"),
    ],
    ids=["given", "a host's", "with dots", "long", "nothing of it"],
)
def test_a_broker_has_the_hosts_name_where_it_is_given_none(
    host: str, state: dict[str, str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.base.settings.state.gethostname", lambda: host)
    assert parse_settings({"cellblock": {"state": state}}).cellblock.state.broker_name == name


def test_one_client_has_a_quarter_and_a_preview_is_no_longer_than_half_of_what_fits() -> None:
    assert OutputSettings(100_000).client_bytes == 64 * MIB
    assert [OutputSettings(fits).shown_bytes for fits in (1_024, 100_000)] == [512, 2_000]


def test_the_page_says_what_the_code_does() -> None:
    text = (Path(__file__).parents[6] / "docs" / "howto-big-outputs.md").read_text(encoding="utf-8")
    (example,) = (
        json.loads(block)
        for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)
        if "mcpServers" in block
    )
    assert parse_settings(example).cellblock.frontend.inline_bytes == 20_000


SERVERS = {"wiki": {"url": "https://wiki.example/mcp"}, "files": {"command": "files"}}
CLIENT = {"client_id": "c", "issuer": "https://login.example"}


def of_wiki(**cellblock: Any) -> Settings:
    return parse_settings({"mcpServers": SERVERS, "cellblock": cellblock})


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"client_secret": "s", "client_secret_env": "S", **CLIENT}, "client_secret_env"),
        ({"client_secret": "s", "client_auth_method": "private_key_jwt", **CLIENT}, "needs the grant"),
        ({"client_secret": "s", "client_id": "c"}, "needs `client_id`, and `issuer`"),
        ({"grant": "client_credentials", **CLIENT}, "a client secret"),
        ({"client_id": "c", "client_metadata_url": "https://x.example/c.json"}, "client_metadata_url"),
        ({"redirect_port": 80}, "redirect_port"),
        ({"scopes": ["two words"]}, "scopes"),
        ({"scopes": ['quo"te']}, "scopes"),
        ({"isuer": "https://login.example"}, "isuer"),
        ({"client_secret": {"canary": "canary-5512"}}, "client_secret"),
    ],
)
def test_what_cannot_be_used_is_told_without_the_secret(own: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_wiki(auth={"servers": {"wiki": {**own, "client_secret": own.get("client_secret")}}})
    assert told in str(caught.value) and "canary-5512" not in str(caught.value)


def test_where_a_secret_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    shown, named, filed = (
        ServerAuthSettings(client_secret=secret, **CLIENT)  # type: ignore[arg-type]
        for secret in ("canary-1", {"env": "WIKI_SECRET"}, {"file": str(file)})
    )
    for lacking, said in ((named, "WIKI_SECRET is not set"), (filed, "cannot be read")):
        with pytest.raises(ConfigError, match=said):
            lacking.secret()
    monkeypatch.setenv("WIKI_SECRET", "two")
    file.write_text("three\n")
    assert [one.secret() for one in (shown, named, filed)] == ["canary-1", "two", "three"]
    assert ServerAuthSettings().secret() is None and "canary-1" not in repr(shown)


def test_bounds_of_one_server_stand_in_for_those_of_all() -> None:
    bounds = {"call_timeout_ms": {"*": 7, "wiki": 9}, "max_calls": {"wiki": 2}}
    wiki, files = map(of_wiki(upstream=bounds).cellblock.upstream.for_server, ("wiki", "files"))
    assert (wiki.call_timeout_ms, wiki.connect_timeout_ms, wiki.max_calls) == (9, 30_000, 2)
    assert (files.call_timeout_ms, files.max_calls) == (7, None)


OLDER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"pins": {"reaction": "quarantine", "servers": {"wiki": "off"}}},
        {"pins": {"*": "quarantine", "wiki": "off"}},
    ),
    ({"pins": {"servers": {"wiki": "off"}}}, {"pins": {"wiki": "off"}}),
    (
        {
            "upstream": {
                "call_timeout_ms": 7,
                "servers": {"wiki": {"call_timeout_ms": 9, "max_concurrent_calls": 2}},
            }
        },
        {"upstream": {"call_timeout_ms": {"*": 7, "wiki": 9}, "max_calls": {"wiki": 2}}},
    ),
    (
        {"schemas": {"unwrap": "json", "servers": {"wiki": {"learn": False, "unwrap": None}}}},
        {"schemas": {"unwrap": "json", "learn": {"wiki": False}}},
    ),
    ({"schemas": {"keep_samples": True}}, {"schemas": {"learn": "samples"}}),
    (
        {"schemas": {"keep_samples": True, "learn": {"*": "shared", "wiki": True, "files": False}}},
        {"schemas": {"learn": {"*": "shared", "wiki": "samples", "files": False}}},
    ),
    (
        {"schemas": {"keep_samples": True, "servers": {"wiki": {"keep_samples": False}}}},
        {"schemas": {"learn": {"*": "samples", "wiki": True}}},
    ),
    (
        {"schemas": {"servers": {"wiki": {"keep_samples": True}}}},
        {"schemas": {"learn": {"wiki": "samples"}}},
    ),
    (
        {"http": {"allowed_hosts": ["a"], "allowed_origins": ["https://b"]}},
        {"http": {"allowed_hosts": ["a", "https://b"]}},
    ),
    (
        {"hosts": {"listen": "tcp://h:1", "ray": SAME_USER | {"min": 0, "resources": {"GPU": 1}}}},
        {
            "hosts": {
                "listen": "tcp://h:1",
                "ray": SAME_USER | {"hosts": [0, 8], "options": {"resources": {"GPU": 1}}},
            }
        },
    ),
    (
        {
            "hosts": {
                "listen": "tcp://h:1",
                "ray": SAME_USER | {"min": 3, "max": 3, "runtime_env": {"pip": ["x"]}},
            }
        },
        {
            "hosts": {
                "listen": "tcp://h:1",
                "ray": SAME_USER | {"hosts": 3, "options": {"runtime_env": {"pip": ["x"]}}},
            }
        },
    ),
    ({"frontend": {"strict": True, "profile": "extended"}}, {"frontend": {"profile": "strict"}}),
    ({"frontend": {"strict": True, "profile": "proxy"}}, {"frontend": {"profile": "proxy"}}),
    ({"frontend": {"strict": False, "profile": "extended"}}, {"frontend": {"profile": "extended"}}),
    ({"isolation": {"mode": "off"}}, {"isolation": "off"}),
    ({"isolation": {}}, {}),
    ({"traces": {"endpoint": "http://t:4318/v1/traces"}}, {"traces": "http://t:4318/v1/traces"}),
    ({"traces": {}}, {}),
    (
        {"policy": {"reuse": {"cli": "principal"}, "clients": {"cli": {}}}},
        {"pool": {"reuse": {"cli": "principal"}}, "policy": {"clients": {"cli": {}}}},
    ),
    (
        {"pool": {"reuse": "principal", "warm": 1}, "policy": {"reuse": {"cli": "never"}}},
        {"pool": {"reuse": {"*": "principal", "cli": "never"}, "warm": 1}},
    ),
    ({"metrics": {"token": False}}, {"metrics": "open"}),
    ({"metrics": {}}, {"metrics": "token"}),
    (
        {"outputs": {"inline_bytes": 5_000}, "frontend": {"strict": True}},
        {"frontend": {"profile": "strict", "inline_bytes": 5_000}},
    ),
    (
        {"audit": {"enabled": True, "inputs": True, "outputs": False}},
        {"audit": ["calls", "inputs"]},
    ),
    ({"audit": {"values": ["outputs"]}}, {"audit": ["outputs"]}),
    ({"audit": {"enabled": False, "values": ["outputs"]}}, {"audit": "off"}),
    ({"audit": {"enabled": True}}, {"audit": ["calls"]}),
    ({"audit": {}}, {}),
    (
        {"auth": {"servers": {"wiki": {"client_metadata_url": "https://x.example/c.json"}}}},
        {"auth": {"servers": {"wiki": {"client_id": "https://x.example/c.json"}}}},
    ),
    (
        {"journal": {"mode": "failed", "clients": {"cli": "all"}}},
        {"journal": {"mode": {"*": "failed", "cli": "all"}}},
    ),
    ({"journal": {"clients": {"cli": "all"}}}, {"journal": {"mode": {"cli": "all"}}}),
    ({"state": {"key": KEY, "other_key": OTHER_KEY}}, {"state": {"key": [KEY, OTHER_KEY]}}),
    (
        {"auth": {"servers": {"wiki": {"client_secret_env": "S", "client_secret_file": None, **CLIENT}}}},
        {"auth": {"servers": {"wiki": {"client_secret": {"env": "S"}, **CLIENT}}}},
    ),
    (
        {"auth": {"servers": {"wiki": {"client_secret_file": "/s", **CLIENT}}}},
        {"auth": {"servers": {"wiki": {"client_secret": {"file": "/s"}, **CLIENT}}}},
    ),
    ({"dashboard": {"enabled": False}}, {"dashboard": "off"}),
    ({"dashboard": {"enabled": True}}, {"dashboard": "logs"}),
    ({"dashboard": {"show_scripts": True}}, {"dashboard": "scripts"}),
    ({"dashboard": {"logs": False, "show_scripts": True}}, {"dashboard": "runs"}),
]


@pytest.mark.parametrize(("before", "now"), OLDER, ids=[str(before) for before, _ in OLDER])
def test_what_files_said_before_means_the_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    assert of_wiki(**before).cellblock == of_wiki(**now).cellblock
    CellblockSettings.model_validate(before)


def test_a_team_has_a_dashboard_only_where_its_file_switches_it_on() -> None:
    oauth = {
        "issuer": "https://i.example",
        "audience": "https://a.example",
        "jwks_url": "https://i.example/keys",
    }
    for dashboard, shown in (
        (None, "off"),
        ({"show_scripts": True}, "off"),
        ({"enabled": True, "show_scripts": True}, "scripts"),
        ("logs", "logs"),
    ):
        section = {"http": {"oauth": oauth}} | ({} if dashboard is None else {"dashboard": dashboard})
        assert of_wiki(**section).cellblock.dashboard_shows == shown
