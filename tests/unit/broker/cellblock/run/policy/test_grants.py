"""Which tools a client, a named token and a request have: a token and a request have no more than their client. Named
tokens are made once, and kept as hashes.
"""

import fnmatch
import gc
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError, InvalidRequest
from cellblock.base.settings.policy import Grant, PolicySettings
from cellblock.base.settings.settings import CellblockSettings
from cellblock.base.store import LocalStore
from cellblock.fleet.shared_state import SharedState
from cellblock.run.flows import secrets
from cellblock.run.policy import counts, rules
from cellblock.run.policy.grants import Grants, Layer, any_fits, effect_of, fits, glob, may_fit_server
from cellblock.run.policy.named_tokens import MAX_FILE_BYTES, NamedTokens
from cellblock.run.policy.policy import KEPT_GRANTS, MAX_ASKED_SCHEMAS, Policy
from cellblock.run.request import read_request
from cellblock.tools.catalog.model import Catalog, Effect, Given, ServerEntry, ToolEntry
from cellblock.tools.schemas.validation import Allowance
from support.at_once import at_once
from support.shared_rows import AnyStore


def server(server_id: str, **tools: dict[str, Any] | None) -> ServerEntry:
    entries = tuple(ToolEntry(name, name, annotations=hints) for name, hints in tools.items())
    return ServerEntry(
        server_id,
        server_id,
        server_id,
        tools=entries,
        by_export={tool.export_name: tool for tool in entries},
    )


READS, DESTROYS, WRITES = {"readOnlyHint": True}, {"destructiveHint": True}, {"destructiveHint": False}
CATALOG = Catalog(
    1,
    {
        "files": server("files", read=READS, write=WRITES, delete=DESTROYS, odd=None),
        "mail": server("mail", send=WRITES),
        "empty": server("empty"),
    },
    {"down": "it does not start", "off": "it was stopped"},
    ids={"Off!": "off"},
)
EVERY = ["files.read", "files.write", "files.delete", "files.odd", "mail.send"]


def names(catalog: Catalog) -> list[str]:
    return [
        f"{entry.server_id}.{tool.tool_name}" for entry in catalog.servers.values() for tool in entry.tools
    ]


def seen(policy: Policy, principal: str = "cli", asked: Grant | None = None) -> Catalog:
    """What a principal has with what a request asks for."""
    grants = policy.grants_of(principal, asked)
    return CATALOG if grants is None else grants.narrowed(CATALOG)


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        ({}, None, EVERY),
        ({}, {}, EVERY),
        ({"tools": ["*"]}, None, EVERY),
        ({"tools": []}, None, []),
        ({"tools": ["files.*"]}, None, EVERY[:4]),
        ({"tools": ["files.r*", "mail.send"]}, None, ["files.read", "mail.send"]),
        ({"read_only": True}, None, ["files.read"]),
        ({"readOnly": True}, None, ["files.read"]),
        ({"destructive": "deny"}, None, ["files.read", "files.write", "files.odd", "mail.send"]),
        ({"destructive": "approve"}, None, EVERY),
        ({"budgets": {"files.*": 0}}, None, EVERY),
        # A request takes away, and never adds.
        ({}, {"tools": ["mail.*"]}, ["mail.send"]),
        ({"tools": ["files.*"]}, {"tools": ["*"]}, EVERY[:4]),
        ({"tools": ["files.*"]}, {"tools": ["mail.*"]}, []),
        ({"readOnly": True}, {"readOnly": False}, ["files.read"]),
        (
            {"destructive": "deny"},
            {"destructive": "allow"},
            ["files.read", "files.write", "files.odd", "mail.send"],
        ),
    ],
)
def test_what_is_there(own: dict[str, Any], asked: dict[str, Any] | None, expected: list[str]) -> None:
    policy = Policy(
        PolicySettings(default=Grant.model_validate(own)), [*CATALOG.servers, *CATALOG.unavailable]
    )
    of_request = None if asked is None else Grant.model_validate(asked)
    assert names(seen(policy, asked=of_request)) == expected


@pytest.mark.parametrize(
    ("own", "tool", "why"),
    [
        ({"read_only": True}, "write", "allows only read-only tools, and this one is known to write"),
        ({"read_only": True}, "delete", "allows only read-only tools, and this one is known to destroy data"),
        ({"read_only": True}, "odd", "allows only read-only tools, and this one is not known to be one"),
        ({"destructive": "deny"}, "delete", "does not grant tools that destroy data"),
        ({"tools": ["mail.*"]}, "read", "does not grant it"),
    ],
)
def test_why_a_tool_is_not_there_is_a_sentence(own: dict[str, Any], tool: str, why: str) -> None:
    for of_request, whose in ((False, "the policy for this client "), (True, "the request's own grants ")):
        layer = Layer(Grant.model_validate(own), of_request=of_request)
        said = why.replace("allows", "allow").replace("does", "do") if of_request else why
        assert layer.refusal("files", CATALOG.servers["files"].tool(tool)).why == whose + said


DRAWN = st.sampled_from(["*", "files.*", "files.read", "*.send", "mail.*", "files.*e*", "empty.*", "down.*"])
GRANTS = st.builds(
    Grant,
    tools=st.none() | st.lists(DRAWN, max_size=3),
    read_only=st.booleans(),
    budgets=st.dictionaries(DRAWN, st.integers(0, 3), max_size=2),
    arguments=st.dictionaries(DRAWN, st.sampled_from([False, {"maxProperties": 9}]), max_size=2),
    approve=st.lists(DRAWN, max_size=2),
    destructive=st.sampled_from(["allow", "approve", "deny"]),
)


@given(GRANTS, GRANTS, st.sampled_from([{}, {"path": "a"}, []]))
def test_a_request_never_widens_what_its_client_has(own: Grant, asked: Grant, arguments: Any) -> None:
    policy = Policy(PolicySettings(default=own), [*CATALOG.servers, *CATALOG.unavailable])
    wide, narrow = policy.grants_of("cli"), policy.grants_of("cli", asked)
    before, after = seen(policy), seen(policy, asked=asked)
    assert set(names(after)) <= set(names(before))
    assert set(after.unavailable) <= set(before.unavailable)
    assert set(before.denied) <= set(after.denied)
    assert set(after.denied).isdisjoint(after.servers)
    for entry in after.servers.values():
        for tool in entry.tools:
            for layer in wide.layers if wide else ():
                # All that holds for the client holds for the request: it is one of its layers.
                assert narrow is not None and layer in narrow.layers
                if layer.asks_about(entry.server_id, tool):
                    assert any(one.asks_about(entry.server_id, tool) for one in narrow.layers)
                if layer.violation(entry.server_id, tool, arguments, Allowance(arguments)):
                    assert any(
                        one.violation(entry.server_id, tool, arguments, Allowance(arguments))
                        for one in narrow.layers
                    )


def test_what_is_not_narrowed_stays_the_same_object() -> None:
    """Module URLs and search indexes are kept by identity."""
    policy = Policy(PolicySettings(default=Grant(tools=["files.*", "mail.*"])), CATALOG.servers)
    grants = policy.grants_of("cli")
    assert grants is policy.grants_of("token")
    narrowed = grants.narrowed(CATALOG)
    assert narrowed is grants.narrowed(CATALOG)
    assert narrowed.servers["files"] is CATALOG.servers["files"]
    asked = Grant(tools=["files.read"])
    first, second = policy.grants_of("cli", asked), policy.grants_of("cli", Grant(tools=["files.read"]))
    assert first is second and isinstance(first, Grants)
    newer = Catalog(2, {**CATALOG.servers, "mail": server("mail", send=WRITES, draft=WRITES)})
    assert first.narrowed(newer).servers["files"] is first.narrowed(CATALOG).servers["files"]
    for number in range(2 * KEPT_GRANTS):
        policy.grants_of("cli", Grant(tools=[f"files.t{number}"]))
    assert policy.grants_of("cli", asked) is not first


def test_a_narrowed_catalog_is_kept_as_long_as_its_whole_one() -> None:
    """Each of many people may have one, and principals share grants."""
    grants = Policy(PolicySettings(default=Grant(tools=["files.*"])), CATALOG.servers).grants_of("cli")
    whole = [Catalog(1, CATALOG.servers) for _ in range(20)]
    narrowed = [grants.narrowed(one) for one in whole]
    assert all(grants.narrowed(one) is held for one, held in zip(whole, narrowed, strict=True))
    last = ref(narrowed.pop())
    whole.pop()
    gc.collect()
    assert last() is None


def test_each_client_has_its_own_grant_in_place_of_the_default() -> None:
    policy = Policy(
        PolicySettings(
            default=Grant(tools=["files.read"]),
            clients={"oauth:ann": Grant(), "stdio:ann": Grant(tools=[]), "token": Grant(tools=["mail.*"])},
        ),
        CATALOG.servers,
    )

    assert policy.grants_of("oauth:ann") is None
    # Who claims the name of somebody else is not that one.
    others = {name: ["files.read"] for name in ("stdio:oauth:ann", "ann", "", "cli")}
    expected = {"stdio:ann": [], "token": ["mail.send"], **others}
    assert {one: names(seen(policy, one)) for one in expected} == expected


def test_without_any_policy_nothing_is_asked_of_it() -> None:
    for asked in (None, Grant()):
        assert Policy(PolicySettings(), []).grants_of("anybody", asked) is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"default": {"tools": ["fils.*"]}}, "fils"),
        ({"clients": {"cli": {"budgets": {"nowhere.x": 1}}}}, "clients.cli"),
        ({"default": {"arguments": {"files.*": {"type": "strin"}}}}, "files"),
        ({"default": {"arguments": {"files.*": {"$ref": "https://example.com/schema"}}}}, "files"),
        ({"default": {"arguments": {"files.*": {"propertes": {}}}}}, "'propertes' is no .*, 'properties' is"),
        ({"clients": {"cli": {"arguments": {"files.*": {"not": {"requird": ["x"]}}}}}}, "'requird' is no"),
        ({"default": {"arguments": {"files.*": {"description": "nothing"}}}}, "restricts nothing"),
        ({"default": {"arguments": {"files.*": True}}}, "restricts nothing"),
        ({"default": {"arguments": {"files.*": {"type": "object", "properties": {}}}}}, "restricts nothing"),
    ],
)
def test_a_policy_that_cannot_be_kept_is_no_policy(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Policy(PolicySettings.model_validate(section), CATALOG.servers)


@pytest.mark.parametrize(
    "section",
    [
        {"clients": {"claude": {}}},
        {"clients": {"oauth:": {}}},
        {"default": {"tool": []}},
        {"default": {"readOnly": "yes"}},
        {"default": {"budgets": {"files.*": -1}}},
        {"default": {"budgets": {"files.*": True}}},
        {"default": {"destructive": "maybe"}},
    ],
)
def test_a_policy_that_says_what_nobody_means(section: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PolicySettings.model_validate(section)


def schemas(count: int) -> Grant:
    return Grant(arguments={f"files.t{number}": {"minProperties": 1} for number in range(count)})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (Grant(arguments={"*": {"$ref": "#/nowhere"}}), "cannot be used"),
        (Grant(arguments={"*": {"propertes": {"x": False}}}), "'propertes' is no keyword"),
        (schemas(MAX_ASKED_SCHEMAS + 1), "has 21 schemas, over 20"),
        (Grant(arguments={"*": {"enum": ["x" * 1_000] * 200}}), "over 131072"),
        (Grant(tools=["\ud800.x"]), "cannot be written as JSON"),
        (
            Grant(arguments={"*": json.loads('{"not":' * 400 + "{}" + "}" * 400)}),
            "cannot be written as JSON",
        ),
    ],
    ids=["a reference", "a slip", "many schemas", "large", "a lone surrogate", "deep"],
)
def test_grants_of_a_request_that_cannot_be_used_are_refused(asked: Grant, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        Policy(PolicySettings()).grants_of("cli", asked)


def test_a_request_has_so_many_schemas_at_most() -> None:
    assert Policy(PolicySettings()).grants_of("cli", schemas(MAX_ASKED_SCHEMAS)) is not None
    # The configuration is whoever runs Cellblock's own.
    assert Policy(PolicySettings(default=schemas(100))).grants_of("cli") is not None


def test_schemas_of_a_request_that_are_slow_to_compile_are_refused_before_they_all_are() -> None:
    def slow(number: int) -> dict[str, Any]:
        return {"allOf": [{"pattern": f"[\\p{{L}}\\p{{N}}]{{3}}{number}_{part}"} for part in range(30)]}

    asked = Grant(arguments={f"files.t{number}": slow(number) for number in range(20)})
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="take too long to compile"):
        Policy(PolicySettings()).grants_of("cli", asked)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("pattern", "server", "tool", "expected"),
    [
        ("*", "files", "read", True),
        ("files.*", "files", "read", True),
        ("files.read", "files", "read", True),
        ("files.read", "files", "read_all", False),
        ("files.read_*", "files", "read_all", True),
        ("files.*_all", "files", "read_all", True),
        ("*.read", "files", "read", True),
        ("*.read", "files", "write", False),
        ("file*.r*d", "files", "read", True),
        ("files.Read", "files", "read", False),
        ("files--2.*", "files", "read", False),
        # The first dot ends the server: a tool that is called like a server and a tool is no other server's.
        ("a.b.c", "a", "b.c", True),
        ("a.b.*", "a", "b", False),
        # The function's name is a name of the tool, too.
        ("files.get_file", "files", "get-file", True),
        ("files.get-file", "files", "get-file", True),
        ("files.__proto__", "files", "read", False),
    ],
)
def test_what_fits(pattern: str, server: str, tool: str, expected: bool) -> None:
    assert fits(pattern, server, ToolEntry(tool, re.sub(r"\W", "_", tool))) is expected
    if expected:
        assert may_fit_server(pattern, server)


@given(st.text("ab*", max_size=12), st.text("ab", max_size=12))
def test_a_star_is_any_characters(pattern: str, text: str) -> None:
    assert glob(pattern, text) == fnmatch.fnmatchcase(text, pattern)


def test_a_pattern_of_a_request_cannot_hold_the_broker() -> None:
    began = time.process_time()
    assert not glob("a*" * 299 + "b", "a" * 600)
    assert time.process_time() - began < 1


def test_stars_in_a_row_cost_nothing() -> None:
    patterns = ["f" + "*" * 595 + f"{number}.x" for number in range(200)]
    began = time.process_time()
    for _ in range(100):
        assert not any_fits(patterns, "files", ToolEntry("read", "read"))
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("pattern", ["", "files", "files.", ".read", "x" * 601, 7, None])
def test_what_is_no_pattern_says_what_is_meant(pattern: object) -> None:
    with pytest.raises(ValidationError, match=r"server\.tool|characters|string"):
        Grant.model_validate({"tools": [pattern]})


@pytest.mark.parametrize(
    ("annotations", "given", "expected"),
    [
        (None, None, None),
        ({}, None, None),
        ({"title": "Read"}, None, None),
        ({"readOnlyHint": True}, None, "read"),
        ({"readOnlyHint": False}, None, "destructive"),
        ({"readOnlyHint": False, "destructiveHint": False}, None, "write"),
        ({"destructiveHint": False}, None, "write"),
        ({"destructiveHint": True}, None, "destructive"),
        # Contradictory: the worse one.
        ({"readOnlyHint": True, "destructiveHint": True}, None, "destructive"),
        # What is no boolean says nothing.
        ({"readOnlyHint": "true"}, None, None),
        ({"readOnlyHint": 1, "destructiveHint": 0}, None, None),
        # The user's word wins, in both directions.
        ({"destructiveHint": True}, "read", "read"),
        ({"readOnlyHint": True}, "destructive", "destructive"),
        (None, "write", "write"),
    ],
)
def test_effect(annotations: dict[str, Any] | None, given: Effect | None, expected: Effect | None) -> None:
    tool = ToolEntry("t", "t", annotations=annotations, given=Given(effect=given) if given else None)
    assert effect_of(tool) == expected


PAGE = (Path(__file__).parents[6] / "docs" / "howto-policy.md").read_text(encoding="utf-8")


def test_every_example_is_accepted() -> None:
    configuration, request, bounds = (
        json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    )
    settings = parse_settings(configuration)
    policy = Policy(settings.cellblock.policy, settings.servers)
    assert policy.grants_of("oauth:4f1c-ann") is None
    bounded = parse_settings({"mcpServers": {}, "cellblock": bounds}).cellblock.policy
    assert bounded.quotas["token:ci"]["billing.*"].strict
    assert read_request(request, CellblockSettings()).grants is not None


def test_every_code_is_explained() -> None:
    sources = (Path(str(module.__file__)).read_text(encoding="utf-8") for module in (rules, counts, secrets))
    codes = set(re.findall(r'"([A-Z]+(?:_[A-Z]+)+)"', "".join(sources)))
    assert len(codes) >= 8
    assert codes == set(re.findall(r"^\| `([A-Z_]+)` \|", PAGE, re.MULTILINE))


def test_the_defaults_are_those_of_the_page() -> None:
    assert f"**{rules.APPROVAL_SECONDS:g} seconds** for one answer" in PAGE
    assert f"{rules.MAX_QUESTIONS} questions" in PAGE


@pytest.fixture
def tokens(tmp_path: Path) -> NamedTokens:
    return NamedTokens(LocalStore(tmp_path))


def test_only_its_hash_is_kept(tmp_path: Path) -> None:
    tokens = NamedTokens(LocalStore(tmp_path / "s"))
    token = tokens.create("ci")
    file = tmp_path / "s" / "tokens" / "ci.json"
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    assert token.startswith("cellblock.ci.") and token.rpartition(".")[2] not in file.read_text()
    assert tokens.name_of(token) == "ci" and tokens.create("other") != token
    assert [issued.name for issued in tokens.all()] == ["ci", "other"]


def test_another_process_sees_it_come_and_go(store_of_broker: Callable[[], AnyStore]) -> None:
    def look() -> None:
        if isinstance(there_in, SharedState):
            there_in.rows.read()

    there_in = store_of_broker()
    here, there = NamedTokens(store_of_broker()), NamedTokens(there_in)
    assert not there.any and there.all() == []
    token = here.create("ci", grants=Grant(tools=["files.read"]))
    look()
    assert there.any and there.name_of(token) == "ci"
    assert there.grant_of("token:ci") == Grant(tools=["files.read"])
    here.revoke("ci")
    look()
    assert there.name_of(token) is None and not there.any
    # A new one of the same name is another token.
    again = here.create("ci")
    look()
    assert there.name_of(token) is None and there.name_of(again) == "ci"


def test_of_many_that_make_one_name_at_once_one_succeeds(store_of_broker: Callable[[], AnyStore]) -> None:
    def make(_: int) -> str | None:
        try:
            return NamedTokens(store_of_broker()).create("ci")
        except ConfigError:
            return None

    (made,) = filter(None, at_once(make, range(32)))
    tokens = NamedTokens(store_of_broker())
    assert tokens.name_of(made) == "ci" and [issued.name for issued in tokens.all()] == ["ci"]


def test_one_that_is_over_is_no_token(tokens: NamedTokens) -> None:
    assert tokens.name_of(tokens.create("ci", expires=1)) is None
    assert [issued.problem for issued in tokens.all()] == ["it has expired"]
    assert names(seen(Policy(PolicySettings(), ["files"], tokens), "token:ci")) == []


@pytest.mark.parametrize(
    "name", ["", "Ann", "a.b", "../token", "a/b", "-a", "ä", "a" * 64, "a\n", "a\0", "ci "]
)
def test_names_that_are_none(tmp_path: Path, name: str, tokens: NamedTokens) -> None:
    (tmp_path / "token").write_text("mine")
    with pytest.raises(ConfigError, match="no name for a token"):
        tokens.create(name)
    with pytest.raises(ConfigError, match="There is no token"):
        tokens.revoke(name)
    assert tokens.name_of(f"cellblock.{name}.{'a' * 43}") is None
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def rewritten(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


CHANGED: dict[str, Callable[[Path], object]] = {
    "mode": lambda file: file.chmod(0o640),
    "damaged": lambda file: file.write_text("{"),
    "other": lambda file: rewritten(file, name="cd"),
    "large": lambda file: file.write_text(file.read_text() + " " * MAX_FILE_BYTES),
    "hash": lambda file: rewritten(file, sha256="", grants={}),
}
NO_FILE: dict[str, Callable[[Path], object]] = {
    "link": lambda file: file.symlink_to(file.parents[1] / "kept"),
    "folder": Path.mkdir,
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("wrong", [*CHANGED, *NO_FILE])
def test_a_file_that_is_not_as_it_was_written_lets_nobody_in(tmp_path: Path, wrong: str) -> None:
    token = NamedTokens(LocalStore(tmp_path)).create("ci")
    file = tmp_path / "tokens" / "ci.json"
    if wrong in NO_FILE:
        file.rename(tmp_path / "kept")
    (CHANGED | NO_FILE)[wrong](file)
    reader = NamedTokens(LocalStore(tmp_path))
    assert reader.name_of(token) is None
    assert names(seen(Policy(PolicySettings(), ["files"], reader), "token:ci")) == []
    assert [issued.problem is not None for issued in reader.all()] == [True]
    if wrong in NO_FILE:
        with pytest.raises(ConfigError, match="not a file of Cellblock's"):
            reader.revoke("ci")
        assert (tmp_path / "kept").is_file()


def test_its_grant_takes_away_from_the_policys(tokens: NamedTokens) -> None:
    tokens.create("all")
    tokens.create("reader", grants=Grant(tools=["files.read"]))
    tokens.create("writer", grants=Grant(tools=["files.write"]))
    wide = Policy(PolicySettings(), ["files"], tokens)
    assert wide.grants_of("token:all") is None and wide.grants_of("token") is None
    asked = (None, Grant(tools=["files.*"]), Grant(tools=["files.write"]))
    assert [names(seen(wide, "token:reader", one)) for one in asked] == [["files.read"], ["files.read"], []]
    clients = {"token:all": Grant(), "token": Grant(tools=[])}
    narrow = Policy(PolicySettings(default=Grant(tools=["files.read"]), clients=clients), ["files"], tokens)
    expected = {"token:all": EVERY, "token:reader": ["files.read"], "token:writer": []}
    assert {name: names(seen(narrow, name)) for name in expected} == expected
    tokens.revoke("reader")
    assert names(seen(wide, "token:reader")) == [] == names(seen(wide, "token:nobody"))


def test_what_a_renamed_server_would_let_through_is_granted_to_nobody(tokens: NamedTokens) -> None:
    tokens.create("ci", grants=Grant(budgets={"files.write": 1}))
    for server_id, expected in (("files", EVERY), ("documents", [])):
        assert names(seen(Policy(PolicySettings(), [server_id], tokens), "token:ci")) == expected
