"""Who shares hosts on Ray, and what Ray is told of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cellblock.fleet.ray import __main__ as reporter
from cellblock.fleet.ray.plan import Plan

PLAN = Plan(("--connect", "tcp://b:1"), b"s" * 32, 1, 8, 16, {"CPU": 2.0}, {}, 60.0)


def test_brokers_that_say_the_same_share_and_others_do_not() -> None:
    assert replace(PLAN).name == PLAN.name
    changes: list[dict[str, Any]] = [
        {"arguments": ("--connect", "tcp://b:2")},
        {"secret": b"t" * 32},
        {"least": 2},
        {"most": 9},
        {"capacity": 8},
        {"resources": {"CPU": 3.0}},
        {"runtime_env": {"pip": ["cellblock"]}},
        {"shrink_seconds": 61.0},
    ]
    names = {replace(PLAN, **change).name for change in changes}
    assert len(names) == len(changes) and PLAN.name not in names


def test_another_version_of_cellblock_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = PLAN.name
    monkeypatch.setattr("cellblock.fleet.ray.plan.version", lambda _: "99")
    assert PLAN.name != before


def test_the_secret_is_in_no_text() -> None:
    assert repr(PLAN.secret)[2:-1] not in repr(PLAN) and PLAN.secret.hex() not in repr(PLAN)


def test_resources_are_options_of_an_actor() -> None:
    plan = replace(
        PLAN, resources={"CPU": 2, "GPU": 1, "memory": 2**30, "box": 1}, runtime_env={"pip": ["x"]}
    )
    assert plan.options == {
        "num_cpus": 2,
        "num_gpus": 1,
        "memory": 2**30,
        "resources": {"box": 1},
        "runtime_env": {"pip": ["x"]},
    }
    assert PLAN.options == {"num_cpus": 2, "num_gpus": 0, "resources": {}}


@pytest.mark.parametrize(
    ("endpoint", "connect", "names"),
    [
        ("tcp://0.0.0.0:7070", [], ("tcp://10.1.2.3:7070",)),
        ("tcp://[::]:7070", [], ("tcp://10.1.2.3:7070",)),
        ("tcp://10.9.9.9:7070", [], ("tcp://10.9.9.9:7070",)),
        ("tcp://0.0.0.0:7070", ["dns://brokers:7070", "tcp://b:1"], ("dns://brokers:7070", "tcp://b:1")),
    ],
)
def test_hosts_find_the_broker_where_ray_knows_its_machine(
    endpoint: str, connect: list[str], names: tuple[str, ...]
) -> None:
    settings = {"connect": connect, "min": 1, "max": 2, "resources": {"CPU": 2}}
    task = {
        "settings": {**settings, "runtime_env": {}},
        "capacity": 4,
        "shrink_seconds": 1.5,
        "endpoint": endpoint,
        "secret": "0a" * 32,
        "arguments": ["--capacity", "4"],
    }
    plan = reporter.plan_of(task, "10.1.2.3")
    assert plan.arguments == ("--connect", *names, "--capacity", "4")
    assert (plan.shrink_seconds, plan.secret) == (1.5, b"\n" * 32)
