"""The key of a run, by which runs may share a process; its limits and its clock."""

from contextlib import ExitStack
from typing import Any

import pytest

from cellblock.base.errors import InvalidRequest
from cellblock.base.settings.policy import Grant, Reuse
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import LimitSettings
from cellblock.run.executor import KEPT_KEYS, ReuseKeys, is_reused
from cellblock.run.policy.grants import Grants, Layer
from cellblock.run.request import KEYS, Limits, resolve_limits
from cellblock.run.run_clock import RunClock
from cellblock.serve.http.caller import Caller
from cellblock.serve.http.sessions import Sessions
from cellblock.tools.catalog.model import Catalog

CATALOG = Catalog(1)
GRANTS = Grants((Layer(Grant(read_only=True), of_request=True),))


def _key(keys: ReuseKeys, **other: Any) -> str:
    about: dict[str, Any] = {
        "principal": "token:a",
        "client": "c",
        "grants": None,
        "catalog": CATALOG,
        "generation": 1,
    }
    return keys.key(**{**about, **other})


def test_the_same_run_has_the_same_key_whichever_of_a_principals_clients_sends_it() -> None:
    keys = ReuseKeys()
    assert _key(keys) == _key(keys) == _key(keys, client="another")


def test_principals_that_may_be_several_share_by_client() -> None:
    keys = ReuseKeys()
    for principal in ("embedding", "anybody"):
        first = _key(keys, principal=principal)
        assert first == _key(keys, principal=principal) != _key(keys, principal=principal, client="another")


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
    assert _key(keys, client="another", grants=GRANTS)[:16] == first[:16]
    assert told == []
    newer = _key(keys, catalog=Catalog(2))
    assert [newer.startswith(prefix) for prefix in told] == [True] and not first.startswith(told[0])
    assert _key(keys, catalog=Catalog(2), generation=2).startswith(told[1])
    keys.renew()
    assert len(set(told)) == 3
    assert _key(keys, catalog=Catalog(2), generation=2).startswith(told[2])


def test_a_clients_own_word_goes_before_the_pools() -> None:
    assert not is_reused("token:a", "c", {"*": "never"})
    assert is_reused("token:a", "c", {"*": "principal"})
    assert is_reused("token:a", "c", {"*": "never", "token:a": "principal"})
    assert not is_reused("token:a", "c", {"*": "principal", "token:a": "never"})


def test_nobody_in_particular_shares_only_within_a_session() -> None:
    """An address may be that of a proxy, with many people behind it."""
    places = Sessions(total=1, idle_seconds=1.0)
    opener = Caller("anybody", "", "", "")
    places.opened(b"key", opener, 0.0)
    session = places.begin(b"key", opener)
    assert session is not None and is_reused("anybody", session, {"*": "principal"})
    both: tuple[dict[str, Reuse], ...] = ({}, {"anybody": "principal"})
    for reuse in both:
        assert not is_reused("anybody", "http anybody 10.0.0.1", {"*": "principal", **reuse})


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


SETTINGS = LimitSettings(
    timeout_ms=LimitRange(default=1000, maximum=5000),
    max_cpu_ms=LimitRange(default=500, maximum=5000),
    max_memory_bytes=LimitRange(default=64 << 20, maximum=128 << 20),
    max_log_bytes=LimitRange(default=100, maximum=1000),
    max_tool_calls=LimitRange(default=10, maximum=20),
)
DEFAULTS = Limits(
    timeout_ms=1000, max_cpu_ms=500, max_memory_bytes=64 << 20, max_log_bytes=100, max_tool_calls=10
)


@pytest.mark.parametrize("asked", [None, {}, {"somethingElse": "x", "timeoutMS": 1}, dict.fromkeys(KEYS)])
def test_defaults_and_unknown_keys(asked: dict[str, Any] | None) -> None:
    limits, told = resolve_limits(asked, SETTINGS, message_bytes=1 << 20)
    unknown = ["limits.somethingElse, timeoutMS is ignored."] if asked and "timeoutMS" in asked else []
    assert (limits, [one.message for one in told]) == (DEFAULTS, unknown)


def test_one_log_entry_may_have_all_that_may_be_logged_so_that_is_at_most_a_message() -> None:
    assert resolve_limits(None, SETTINGS, message_bytes=50)[0].max_log_bytes == 50
    limits, (warning,) = resolve_limits({"maxLogBytes": 200}, SETTINGS, message_bytes=150)
    assert limits.max_log_bytes == 150
    assert "150 is in force" in warning.message and "raise max_message_bytes" in warning.hint


@pytest.mark.parametrize("key", KEYS)
def test_least_and_most_are_allowed(key: str) -> None:
    name, least = KEYS[key]
    most = getattr(SETTINGS, name).maximum
    for value in (least, most, float(most)):
        limits, warnings = resolve_limits({key: value}, SETTINGS, message_bytes=1 << 20)
        assert getattr(limits, name) == value and isinstance(getattr(limits, name), int)
        assert warnings == []


@pytest.mark.parametrize("key", KEYS)
def test_over_the_maximum_is_clamped_with_a_warning(key: str) -> None:
    name, _ = KEYS[key]
    most = getattr(SETTINGS, name).maximum
    limits, (warning,) = resolve_limits({key: most + 1}, SETTINGS, message_bytes=1 << 20)
    assert getattr(limits, name) == most
    assert (warning.severity, warning.code, warning.path) == ("warning", "LIMIT_CLAMPED", f"/limits/{key}")
    assert str(most) in warning.message and warning.hint


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", ["1", 1.5, True, [], {}, float("nan"), float("inf"), -1])
def test_what_is_no_usable_integer_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"limits.{key}"):
        resolve_limits({key: value}, SETTINGS, message_bytes=1 << 20)
