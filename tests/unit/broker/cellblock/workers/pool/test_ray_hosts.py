"""What a broker without Ray says, and which key its hosts on Ray have."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cellblock import Broker, ConfigError
from cellblock.workers.pool.remote_hosts import pair_on_ray
from cellblock_worker.wire.keys import pair_of
from support.entries import settings


async def test_without_ray_a_broker_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    config = settings(tmp_path / "state", hosts={"local": False, "listen": "tcp://127.0.0.1:*", "ray": {}})
    with pytest.raises(ConfigError, match="Ray is not installed") as caught:
        async with Broker(config):
            pass
    assert caught.value.hint == "pip install 'cellblock[ray]'"


def test_brokers_with_one_key_have_one_for_their_hosts_and_it_is_another() -> None:
    own, other = pair_of(b"a" * 32), pair_of(b"b" * 32)
    assert pair_on_ray(own) == pair_on_ray(pair_of(b"a" * 32))
    assert len({own.secret, pair_on_ray(own).secret, pair_on_ray(other).secret}) == 3
