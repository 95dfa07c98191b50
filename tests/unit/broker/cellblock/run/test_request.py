"""The request of `codemode.run` (section 3.2): what passes, and what is refused with a useful word."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import Any

import pytest

from cellblock.base.errors import InvalidRequest
from cellblock.base.settings.settings import CellblockSettings
from cellblock.run.request import (
    MAX_CAPABILITIES,
    MAX_CAPABILITY_CHARS,
    MAX_CODE_BYTES,
    read_request,
    request_of,
)

SETTINGS = CellblockSettings()


def test_a_whole_request() -> None:
    raw = {"code": "1", "limits": {"timeoutMs": 5, "new": []}, "requestedCapabilities": ["a", "b"]}
    request = read_request(raw, SETTINGS)
    assert (request.code, request.requested, request.warnings) == ("1", ("a", "b"), ())
    assert request.limits.timeout_ms == 5
    assert request.limits.max_tool_calls == SETTINGS.limits.max_tool_calls.default


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
        ({"code": "1", "requested_capabilities": []}, "unknown field 'requested_capabilities'"),
    ],
    ids=str,
)
def test_refusals_name_the_field_and_say_what_to_do(raw: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_request(raw, SETTINGS)
    assert words in caught.value.message
    assert caught.value.hint


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


def test_clamped_limits_warn() -> None:
    request = read_request({"code": "1", "limits": {"maxToolCalls": 10**9}}, SETTINGS)
    assert [warning.code for warning in request.warnings] == ["LIMIT_CLAMPED"]


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        ({"tols": []}, "unknown field 'tols'"),
        ({"tools": "files.*"}, "grants.tools"),
        ({"tools": ["files"]}, "server.tool"),
        ({"budgets": {"files.*": "3"}}, "grants.budgets"),
        ({"tools": ["a.b"] * 1_000}, "grants.tools"),
        ([], "grants"),
        ("*", "grants"),
    ],
)
def test_grants_that_say_what_nobody_means(grants: object, words: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_request({"code": "1", "grants": grants}, CellblockSettings())
    assert words in raised.value.message
    assert "readOnly" in raised.value.hint


def test_grants_are_read_with_the_names_of_the_wire() -> None:
    request = read_request(
        {"code": "1", "grants": {"readOnly": True, "tools": ["files.*"]}}, CellblockSettings()
    )
    assert request.grants is not None
    assert (request.grants.read_only, request.grants.tools) == (True, ["files.*"])


@pytest.mark.parametrize("raw", ["x", 5, None, [("code", "1")]])
def test_a_request_that_is_no_object_is_refused_as_that(raw: Any) -> None:
    with pytest.raises(InvalidRequest, match="no object"):
        read_request(raw, SETTINGS)


@pytest.mark.parametrize("requested", [("a", "b"), ["a", "b"], {"a": 1, "b": 2}.keys()])
def test_other_sequences_and_mappings_of_python_are_arrays_and_objects(requested: Any) -> None:
    made = request_of(
        "1", requestedCapabilities=requested, limits=MappingProxyType({"timeoutMs": 5}), grants=None
    )
    assert made == {"code": "1", "requestedCapabilities": ["a", "b"], "limits": {"timeoutMs": 5}}
    assert read_request(made, SETTINGS).requested == ("a", "b")


@pytest.mark.parametrize("value", ["a", b"a", 3, {"a": 1}, object(), float("nan")])
def test_what_is_no_sequence_stays_to_be_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="`requestedCapabilities`"):
        read_request(request_of("1", requestedCapabilities=value), SETTINGS)
