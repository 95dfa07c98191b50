"""A request for a run: what it asks for, its limits, which catalog it sees, and by which key runs share a process."""

import asyncio
import base64
import gc
import json
import time
import weakref
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import pytest

from cellblock.base.errors import InvalidRequest
from cellblock.base.settings.policy import Grant, Reuse
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import CellblockSettings, LimitSettings
from cellblock.run.context import Generation
from cellblock.run.executor import KEPT_KEYS, ReuseKeys, is_reused
from cellblock.run.plan import (
    MAX_IMPORT_ERRORS,
    Plan,
    capability_warnings,
    imported_exports,
    make_plan,
    refusal,
)
from cellblock.run.policy.grants import Grants, Layer
from cellblock.run.request import (
    KEYS,
    MAX_CAPABILITIES,
    MAX_CAPABILITY_CHARS,
    MAX_CODE_BYTES,
    Limits,
    read_request,
    request_of,
    resolve_limits,
)
from cellblock.run.run_clock import RunClock
from cellblock.serve.http.caller import Caller
from cellblock.serve.http.sessions import Sessions
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import IMPORT_SPECIFIER, ModuleUrls, fixed_modules
from support.memory_host import turns
from support.waits import within

SETTINGS = CellblockSettings()


def test_a_whole_request() -> None:
    raw = {
        "code": "1",
        "limits": {"timeoutMs": 5, "new": []},
        "requestedCapabilities": ["a", "b"],
        "grants": {"readOnly": True, "tools": ["files.*"]},
    }
    request = read_request(raw, SETTINGS)
    assert (request.code, request.requested) == ("1", ("a", "b"))
    assert [warning.message for warning in request.warnings] == ["limits.new is ignored."]
    assert request.limits.timeout_ms == 5
    assert request.limits.max_tool_calls == SETTINGS.limits.max_tool_calls.default
    assert request.grants == Grant(read_only=True, tools=["files.*"])


@pytest.mark.parametrize("code", ["", "é" * (MAX_CODE_BYTES // 2), "x" * MAX_CODE_BYTES, "\ud800"])
def test_code_up_to_the_cap_in_bytes(code: str) -> None:
    assert read_request({"code": code}, SETTINGS).code == code


@pytest.mark.parametrize("optional", [{"limits": None}, {"requestedCapabilities": None}, {"limits": {}}])
def test_optional_fields(optional: dict[str, Any]) -> None:
    request = read_request({"code": "1", **optional}, SETTINGS)
    assert request.requested == () and request.limits.timeout_ms == SETTINGS.limits.timeout_ms.default


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({}, "code"),
        ({"code": None}, "code"),
        ({"code": 1}, "code"),
        ({"code": b"1"}, "code"),
        ({"code": ["1"]}, "code"),
        ({"code": "é" * (MAX_CODE_BYTES // 2 + 1)}, "1048578 bytes, over the maximum of 1048576"),
        ({"code": "1", "limits": []}, "limits"),
        ({"code": "1", "limits": "5"}, "limits"),
        ({"code": "1", "limits": {"timeoutMs": "5"}}, "limits.timeoutMs"),
        ({"code": "1", "requestedCapabilities": "a"}, "requestedCapabilities"),
        ({"code": "1", "requestedCapabilities": ["a", 1]}, "requestedCapabilities"),
        ({"code": "1", "requestedCapabilities": {"a": 1}}, "requestedCapabilities"),
        (
            {"code": "1", "requestedCapabilities": ["a"] * 201},
            "`requestedCapabilities` cannot be used: List should have at most 200 items",
        ),
        (
            {"code": "1", "requestedCapabilities": ["a", "b" * 201]},
            "`requestedCapabilities.1` cannot be used: String should have at most 200 characters",
        ),
        ({"code": "1", "script": "2"}, "unknown field 'script'"),
        ({"code": "1", "grants": {"tools": [""]}}, "`grants.tools.0` cannot be used: a pattern has 1 to"),
        (
            {"code": "1", "grants": {"tools": ["a.b"] * 501}},
            "`grants.tools` cannot be used: List should have",
        ),
        ({"code": "1", "grants": {"readOnly": 1}}, "`grants.readOnly` is not a valid boolean"),
        ({"code": "1", "grants": {"tols": []}}, "unknown field 'tols'"),
        ({"code": "1", "grants": {"tools": "files.*"}}, "grants.tools"),
        ({"code": "1", "grants": {"tools": ["files"]}}, "server.tool"),
        ({"code": "1", "grants": {"budgets": {"files.*": "3"}}}, "grants.budgets"),
        ({"code": "1", "grants": []}, "grants"),
        ({"code": "1", "grants": "*"}, "grants"),
        ({"code": "1", "requested_capabilities": []}, "unknown field 'requested_capabilities'"),
        *((raw, "no object") for raw in ("x", 5, None, [("code", "1")])),
    ],
    ids=str,
)
def test_refusals_name_the_field_and_say_what_to_do(raw: Any, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request(raw, SETTINGS)
    assert words in caught.value.message
    assert caught.value.hint and ("grants" not in str(raw) or "readOnly" in caught.value.hint)


def test_capabilities_up_to_their_caps() -> None:
    names = ["x" * MAX_CAPABILITY_CHARS] * MAX_CAPABILITIES
    assert read_request({"code": "1", "requestedCapabilities": names}, SETTINGS).requested == tuple(names)


def test_a_request_of_very_many_capabilities_is_refused_at_once() -> None:
    names = [f"s{number}" for number in range(700_000)]
    began = time.process_time()
    with pytest.raises(InvalidRequest) as caught:
        read_request({"code": "1", "requestedCapabilities": names}, SETTINGS)
    assert time.process_time() - began < 0.2
    assert "at most 200" in caught.value.hint and len(str(caught.value)) < 500


def test_a_refusal_does_not_repeat_the_script() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request({"code": {"secret": "token"}, "x" * 10_000: 1}, SETTINGS)
    assert "token" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize("value", ["a", b"a", 3, {"a": 1}, object(), float("nan")])
def test_what_is_no_sequence_stays_to_be_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="`requestedCapabilities`"):
        read_request(request_of("1", requestedCapabilities=value), SETTINGS)


@pytest.mark.parametrize("requested", [("a", "b"), ["a", "b"], {"a": 1, "b": 2}.keys()])
def test_other_sequences_and_mappings_of_python_are_arrays_and_objects(requested: Any) -> None:
    made = request_of(
        "1", requestedCapabilities=requested, limits=MappingProxyType({"timeoutMs": 5}), grants=None
    )
    assert made == {"code": "1", "requestedCapabilities": ["a", "b"], "limits": {"timeoutMs": 5}}
    assert read_request(made, SETTINGS).requested == ("a", "b")


FILES = ServerEntry("files", "Files", "Files!", tools=(ToolEntry("read", "read"),))
CATALOG = Catalog(
    1,
    {"files": FILES, "git": ServerEntry("git", "Git", "git")},
    {"down": "no such command"},
    {"vault": "Ask for it."},
    ids={"Down, Right?": "down"},
)
PREFIX = "@codemode/servers/"


def plan(code: str) -> Plan:
    return make_plan(code, CATALOG, ModuleUrls())


def start(code: str) -> dict[str, Any]:
    made = plan(code)
    assert made.errors == ()
    return json.loads(made.body)


def text_of(url: str) -> str:
    return base64.b64decode(url.partition(",")[2]).decode()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_static_imports_are_given_their_modules() -> None:
    body = start(
        'import * as f from "@codemode/servers/files"; import {CodemodeError} from "@codemode/errors";'
    )
    modules = body["modules"]
    assert (set(modules), body["refused"]) == ({PREFIX + "files", "@codemode/errors"}, {})
    assert modules[PREFIX + "files"] in text_of(body["main"])
    assert "read" in text_of(modules[PREFIX + "files"])


def test_a_script_without_imports_is_given_nothing() -> None:
    javascript, typescript = (f"data:application/{name};base64," for name in ("javascript", "typescript"))
    assert start("1") == {"main": f"{javascript}{encoded('1')}", "modules": {}, "refused": {}}
    assert start("let a: number")["main"] == f"{javascript}{encoded('let a        ')}"
    assert start("enum A {}")["main"].startswith(typescript)


def test_a_constant_dynamic_import_is_given_or_refused_in_its_place() -> None:
    body = start('await import("@codemode/servers/git"); await import("node:fs");')
    assert set(body["modules"]) == {PREFIX + "git", IMPORT_SPECIFIER}
    assert {name: why["errorClass"] for name, why in body["refused"].items()} == {"node:fs": "CodemodeError"}


def test_a_computed_import_is_given_everything_but_the_inside() -> None:
    body = start('const name = "git"; await import(`@codemode/servers/${name}`);')
    assert set(body["modules"]) == {PREFIX + "files", PREFIX + "git", *fixed_modules()}
    down, vault = body["refused"][PREFIX + "down"], body["refused"][PREFIX + "vault"]
    assert list(body["refused"].values()) == [down, vault]
    assert "no such command" in down["message"] and "not granted" in vault["message"]
    assert down["errorClass"] == vault["errorClass"] == "ServerNotFoundError"
    assert IMPORT_SPECIFIER in start(f'await import("{IMPORT_SPECIFIER}")')["refused"]


@pytest.mark.parametrize(
    ("specifier", "error_class", "word"),
    [
        ("node:fs", None, "only @codemode/*"),
        (IMPORT_SPECIFIER, None, "there is no such module"),
        ("@codemode/error", None, "@codemode/errors"),
        (PREFIX + "fils", "ServerNotFoundError", "files"),
        (PREFIX + "down", "ServerNotFoundError", "no such command"),
        (PREFIX + "zzzzzz", "ServerNotFoundError", "files, git"),
        ("", None, "only @codemode/*"),
        ("files", None, "'@codemode/servers/files'"),
        ("fs", None, "no fs and no files: use tools of @codemode/servers/*"),
        ("node:files", None, "Use tools of @codemode/servers/*"),
        (
            "codemode/servers/files",
            None,
            "only @codemode/* modules exist here. Did you mean '@codemode/servers/files'",
        ),
        ("@codemode/server/files", None, "there is no such module. Did you mean '@codemode/servers/files'?"),
        ("@codemode/tools/file", None, "there is no such module. Did you mean '@codemode/servers/files'?"),
        ("@codemode/git", None, "there is no such module. Did you mean '@codemode/servers/git'?"),
        ("@codemode/servers", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/server", None, "there is no such module. Connected servers: files, git."),
        ("@codemode", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/zzzz/zzzz", None, "there is no such module. Connected servers: files, git."),
        ("@codemode/discover", None, "there is no such module. Did you mean '@codemode/discovery'?"),
    ],
)
def test_a_static_import_that_cannot_be_had_is_an_error_with_its_place(
    specifier: str, error_class: str | None, word: str
) -> None:
    (error,) = plan(f'1;\nimport "{specifier}";').errors
    assert (error.code, error.path, error.error_class) == ("IMPORT_FAILURE", "script.js:2:8", error_class)
    assert word in f"{error.message} {error.hint}"


def test_the_names_of_each_module_are_known_dynamic_ones_too() -> None:
    code = 'import * as f from "@codemode/servers/files"; await import("@codemode/discovery"); await import("x");'
    files, discovery = imported_exports(plan(code).script, CATALOG).items()
    assert files == (PREFIX + "files", ["read"])
    assert discovery[0] == "@codemode/discovery" and "getTool" in discovery[1]


def test_errors_are_capped() -> None:
    assert len(plan("".join(f'import "m{number}";' for number in range(500))).errors) == MAX_IMPORT_ERRORS


def test_hostile_specifiers_are_json_in_the_body() -> None:
    assert (
        "__proto__" in start('await import("</script>\u2028\\u{0}"); await import("__proto__");')["refused"]
    )
    assert refusal("__proto__", CATALOG)["errorClass"] == "CodemodeError"


def test_capabilities_that_are_not_there_are_warned_of() -> None:
    assert capability_warnings(("files", "Files!", PREFIX + "git"), (), CATALOG) == []
    warnings = capability_warnings(("down", "fils", ""), (), CATALOG)
    assert [(found.severity, found.code) for found in warnings] == [("warning", "CAPABILITY_UNAVAILABLE")] * 3
    down, misspelt, empty = warnings
    assert "'down' is not available: the server is not connected (no such command)" in down.message
    assert down.hint
    assert "files" in misspelt.hint and empty.hint
    named, by_id = capability_warnings(("Down, Right?", "down"), (), CATALOG)
    assert (named.hint, named.message) == (by_id.hint, by_id.message.replace("'down'", "'Down, Right?'"))


def test_a_list_of_servers_is_cut() -> None:
    many = Catalog(1, {f"s{number}": ServerEntry(f"s{number}", "S", "s") for number in range(50)})
    hint = refusal("@codemode/servers", many)["hint"]
    assert "s29 and 20 more." in hint and "s30" not in hint


async def ends_now(generation: Generation) -> bool:
    waiting = asyncio.create_task(generation.ended())
    await turns(2)
    waiting.cancel()
    return waiting.done()


async def test_it_ends_with_the_last_of_all_generations_before() -> None:
    first = Generation()
    with first:
        second = Generation(first)
        with Generation(second) as third:
            assert [await ends_now(one) for one in (first, second, third)] == [False, False, False]
            waiting = asyncio.create_task(third.ended())
        await turns(1)
        assert not waiting.done()
    await within(waiting)
    assert [await ends_now(one) for one in (Generation(), first, second)] == [True, True, True]


async def test_generations_that_are_over_are_not_kept() -> None:
    # Counts its own alone: brokers of other tests in this process have some, too.
    made: weakref.WeakSet[Generation] = weakref.WeakSet()

    def after(before: Generation | None = None) -> Generation:
        made.add(new := Generation(before))
        return new

    with after() as first:
        with after(first) as second:
            newest = after(second)
        for _ in range(100):
            newest = after(newest)
        gc.collect()
        assert len(made) <= 4


async def test_older_generations_than_those_that_are_asked_for_are_not_waited_for() -> None:
    first = Generation()
    with first:
        second = Generation(first)
        third = Generation(second)
        assert [one.number for one in (first, second, third)] == [0, 1, 2]
        await within(third.ended(1))
        with second:
            fourth = Generation(second)
            await within(fourth.ended(2))
            waiting = asyncio.create_task(fourth.ended(1))
            await asyncio.sleep(0)
            assert not waiting.done()
        await within(waiting)


GRANTS = Grants((Layer(Grant(read_only=True), of_request=True),))


def _key(keys: ReuseKeys, principal: str = "token:a", **other: Any) -> str:
    about: dict[str, Any] = {"client": "c", "grants": None, "catalog": CATALOG, "generation": 1}
    return keys.key(principal=principal, **(about | other))


@pytest.mark.parametrize(
    ("principal", "is_one"), [("token:a", True), ("embedding", False), ("anybody", False)]
)
def test_clients_of_a_principal_share_a_key_unless_it_may_be_several(principal: str, is_one: bool) -> None:
    keys = ReuseKeys()
    first = _key(keys, principal)
    assert first == _key(keys, principal)
    assert (_key(keys, principal, client="another") == first) is is_one


def test_a_key_that_was_forgotten_does_not_come_again() -> None:
    keys = ReuseKeys()
    first = _key(keys)
    for number in range(KEPT_KEYS):
        _key(keys, generation=10 + number)
    assert _key(keys) != first


def test_keys_that_no_run_can_have_are_told_by_how_the_others_begin() -> None:
    told: list[str] = []
    keys = ReuseKeys(told.append)
    keys.renew()
    assert told == [], "none was given"
    first = _key(keys)
    assert _key(keys, client="another", grants=GRANTS)[:16] == first[:16] and told == []
    newer = _key(keys, catalog=Catalog(2))
    assert [newer.startswith(prefix) for prefix in told] == [True] and not first.startswith(told[0])
    assert _key(keys, catalog=Catalog(2), generation=2).startswith(told[1])
    keys.renew()
    assert len(set(told)) == 3
    assert _key(keys, catalog=Catalog(2), generation=2).startswith(told[2])


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [
        ({"*": "never"}, False),
        ({"*": "principal"}, True),
        ({"*": "never", "token:a": "principal"}, True),
        ({"*": "principal", "token:a": "never"}, False),
    ],
)
def test_a_clients_own_word_goes_before_the_pools(reuse: dict[str, Reuse], expected: bool) -> None:
    assert is_reused("token:a", "c", reuse) is expected


def test_nobody_in_particular_shares_only_within_a_session() -> None:
    """An address may be that of a proxy, with many people behind it."""
    places = Sessions(total=1, idle_seconds=1.0)
    opener = Caller("anybody", "", "", "")
    places.opened(b"key", opener, 0.0)
    session = places.begin(b"key", opener)
    assert session is not None and is_reused("anybody", session, {"*": "principal"})
    for reuse in ({"*": "principal"}, {"anybody": "principal"}):
        assert not is_reused("anybody", "http anybody 10.0.0.1", reuse)


class Host:
    """What the host is told, and what the broker's own bound is."""

    def __init__(self, allowance: float) -> None:
        self.said: list[str] = []
        self.bounds: list[float] = []
        self.clock = RunClock(allowance, lambda message: self.said.append(message.t), self.bounds.append)
        self.clock.start(10.0)


async def test_it_goes_on_when_nobody_stops_it_any_more() -> None:
    host = Host(allowance=60.0)
    with ExitStack() as first:
        first.enter_context(host.clock.standing_still())
        with host.clock.standing_still():
            pass
        assert host.said == ["pause"]
    assert host.said == ["pause", "resume"]
    with host.clock.standing_still():
        assert host.said == ["pause", "resume", "pause"]
    assert host.bounds[0] == 10.0 and 65 < host.bounds[1] <= 70 and 9 < host.bounds[-1] <= 10


async def test_without_an_allowance_it_never_stops() -> None:
    host = Host(allowance=0.0)
    with host.clock.standing_still(), host.clock.standing_still():
        assert host.said == []
    assert host.said == [] and host.bounds == [10.0]


RANGES = LimitSettings(
    timeout_ms=LimitRange(default=1000, maximum=5000),
    max_cpu_ms=LimitRange(default=500, maximum=5000),
    max_memory_bytes=LimitRange(default=64 << 20, maximum=128 << 20),
    max_log_bytes=LimitRange(default=100, maximum=1000),
    max_tool_calls=LimitRange(default=10, maximum=20),
)
DEFAULTS = Limits(
    timeout_ms=1000, max_cpu_ms=500, max_memory_bytes=64 << 20, max_log_bytes=100, max_tool_calls=10
)


@pytest.mark.parametrize(
    ("asked", "unknown"),
    [
        (None, []),
        ({}, []),
        ({"somethingElse": "x", "timeoutMS": 1}, ["limits.somethingElse, timeoutMS is ignored."]),
        (dict.fromkeys(KEYS), []),
    ],
)
def test_defaults_and_unknown_keys(asked: dict[str, Any] | None, unknown: list[str]) -> None:
    limits, told = resolve_limits(asked, RANGES, message_bytes=1 << 20)
    assert (limits, [one.message for one in told]) == (DEFAULTS, unknown)


def test_one_log_entry_may_have_all_that_may_be_logged_so_that_is_at_most_a_message() -> None:
    assert resolve_limits(None, RANGES, message_bytes=50)[0].max_log_bytes == 50
    limits, (warning,) = resolve_limits({"maxLogBytes": 200}, RANGES, message_bytes=150)
    assert limits.max_log_bytes == 150
    assert "150 is in force" in warning.message and "raise max_message_bytes" in warning.hint


@pytest.mark.parametrize("key", KEYS)
def test_least_and_most_are_allowed(key: str) -> None:
    name, least = KEYS[key]
    most = getattr(RANGES, name).maximum
    for value in (least, most, float(most)):
        limits, warnings = resolve_limits({key: value}, RANGES, message_bytes=1 << 20)
        found = getattr(limits, name)
        assert (found, type(found), warnings) == (value, int, [])


@pytest.mark.parametrize("key", KEYS)
def test_over_the_maximum_is_clamped_with_a_warning(key: str) -> None:
    most = getattr(RANGES, KEYS[key][0]).maximum
    limits, (warning,) = resolve_limits({key: most + 1}, RANGES, message_bytes=1 << 20)
    assert getattr(limits, KEYS[key][0]) == most
    assert (warning.severity, warning.code, warning.path) == ("warning", "LIMIT_CLAMPED", f"/limits/{key}")
    assert str(most) in warning.message and warning.hint


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["1", 1.5, True, [], {}, float("nan"), float("inf"), -1])
def test_what_is_no_usable_integer_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"limits.{key}"):
        resolve_limits({key: value}, RANGES, message_bytes=1 << 20)
