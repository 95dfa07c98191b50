"""The key of a run: the same only for runs that may have one process."""

from __future__ import annotations

from typing import Any

from cellblock.base.settings.policy import Grant
from cellblock.run.policy.grants import Grants, Layer
from cellblock.run.reuse import KEPT_KEYS, ReuseKeys, is_reused
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


def test_whatever_differs_makes_another_key() -> None:
    keys = ReuseKeys()
    others: list[dict[str, Any]] = [
        {"principal": "token:b"},
        {"grants": GRANTS},
        {"catalog": Catalog(1)},
        {"generation": 2},
    ]
    made = {_key(keys), *(_key(keys, **other) for other in others)}
    assert len(made) == 1 + len(others)


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
    assert not is_reused("token:a", "c", "never", {})
    assert is_reused("token:a", "c", "principal", {})
    assert is_reused("token:a", "c", "never", {"token:a": "principal"})
    assert not is_reused("token:a", "c", "principal", {"token:a": "never"})


def test_nobody_in_particular_shares_only_within_a_session() -> None:
    """An address may be that of a proxy, with many people behind it."""
    places = Sessions(share=1, total=1, idle_seconds=1.0)
    opener = Caller("anybody", "", "", "")
    places.opened(b"key", opener, 0.0)
    session = places.begin(b"key", opener)
    assert session is not None and is_reused("anybody", session, "principal", {})
    for reuse in ({}, {"anybody": "principal"}):
        assert not is_reused("anybody", "http anybody 10.0.0.1", "principal", reuse)
