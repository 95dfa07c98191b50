"""What `state` takes: a URL and a key, of which neither is told where it is wrong."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.state import StateSettings

KEY = base64.b64encode(bytes(range(32))).decode()
SHARED = "postgresql://me:hunter2@db/cellblock?sslmode=verify-full"


def state(**section: Any) -> StateSettings:
    return parse_settings({"cellblock": {"state": section}}).cellblock.state


def test_files_are_the_default_and_need_no_key() -> None:
    made = state()
    assert (made.url, made.keys, made.is_shared) == ("sqlite:", (), False)
    assert state(key=KEY).keys == (bytes(range(32)),)


def test_what_is_shared_has_a_key_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARED_KEY", KEY)
    made = state(url=SHARED, key="${env:SHARED_KEY}")
    assert made.is_shared and made.keys == (bytes(range(32)),)


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
    "name", ["", "-a", "a.b", "a b", "a/b", "ä", "a\n", "a" * 64, "a:b", "${x}", "<BACKEND>"]
)
def test_a_brokers_name_goes_into_ids_and_into_rules_of_a_balancer(name: str) -> None:
    with pytest.raises(ConfigError, match="broker"):
        parse_settings({"cellblock": {"state": {"broker": name}}})


def test_a_broker_has_the_hosts_name_where_it_is_given_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(host: str, **state: str) -> str:
        monkeypatch.setattr("cellblock.base.settings.state.gethostname", lambda: host)
        return parse_settings({"cellblock": {"state": state}}).cellblock.state.broker_name

    assert named("db1", broker="a-b_C") == "a-b_C"
    assert named("cellblock-broker-0") == "cellblock-broker-0"
    assert named("pod.ns.svc") == "pod-ns-svc"
    assert named("-._ä!-" + "x" * 80) == "x" * 63
    assert named("…") == "broker"
