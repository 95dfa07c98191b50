"""Tokens of an authorization server, whose keys are fetched from a real HTTP server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.serve.http import oauth
from cellblock.serve.http.oauth import JwtVerifier, metadata_path, metadata_url, resource_metadata
from support.token_issuer import AUDIENCE, ISSUER, Issuer
from support.waits import until, within


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


async def test_a_good_token_names_its_subject(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings(scopes=["run"]))
    access = await verifier.verify_token(issuer.token(scope="run other", client_id="editor"))
    assert access is not None
    assert (access.subject, access.client_id, access.scopes) == ("oauth:ada", "editor", ["run", "other"])
    before = issuer.fetches
    assert await verifier.verify_token(issuer.token(scope="run")) is not None
    assert issuer.fetches == before, "the keys are kept"


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "https://another.example/mcp"},
        {"aud": None},
        {"sub": None},
        {"exp": None},
        {"exp": int(time.time()) - 3600},
        {"nbf": int(time.time()) + 3600},
        {"scope": "walk"},
        {"scope": ["run"]},
        {"kid": "k2"},
    ],
    ids=["iss", "aud", "no aud", "no sub", "no exp", "exp", "nbf", "scope", "scopes", "kid"],
)
async def test_a_token_that_is_wrong_in_one_thing_is_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    verifier = JwtVerifier(issuer.settings(scopes=["run"]))
    assert await verifier.verify_token(issuer.token(**{"scope": "run", **claims})) is None


async def test_forged_signatures_are_refused(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings())
    assert await verifier.verify_token(issuer.token(key=ec.generate_private_key(ec.SECP256R1()))) is None
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    assert await verifier.verify_token(issuer.token(key=public, algorithm="HS256")) is None
    unsigned = jwt.encode({"iss": ISSUER, "sub": "ada"}, None, algorithm="none", headers={"kid": "k1"})
    for garbage in (unsigned, "", ".", "a.b.c", "ÿ" * 50, issuer.token() + "x"):
        assert await verifier.verify_token(garbage) is None


async def test_made_up_key_ids_do_not_flood_the_issuer(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings())
    before = issuer.fetches
    for number in range(20):
        assert await verifier.verify_token(issuer.token(kid=f"made up {number}")) is None
    assert issuer.fetches - before == 1


async def test_a_key_that_is_known_waits_for_no_fetch(issuer: Issuer) -> None:
    """Made-up key ids, while the issuer is slow: they wait, the others do not."""
    verifier = JwtVerifier(issuer.settings())
    assert await verifier.verify_token(issuer.token()) is not None
    issuer.answers.clear()
    try:
        fetching = asyncio.create_task(verifier.keys.keep_fresh())
        made_up = [asyncio.create_task(verifier.verify_token(issuer.token(kid=f"x{n}"))) for n in range(20)]
        before = issuer.fetches
        await until(lambda: issuer.fetches > before or made_up[0].done(), "the issuer is asked")
        assert await verifier.verify_token(issuer.token()) is not None
        assert not any(one.done() for one in made_up), "the fetch they wait for is still under way"
    finally:
        issuer.answers.set()
    assert await within(asyncio.gather(*made_up)) == [None] * 20
    assert issuer.fetches == before + 1
    fetching.cancel()


async def test_a_withdrawn_key_is_good_no_longer(issuer: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are fetched again without anybody asking."""
    monkeypatch.setattr(oauth, "KEYS_FOR_SECONDS", 0.01)
    verifier = JwtVerifier(issuer.settings())
    fetching = asyncio.create_task(verifier.keys.keep_fresh())
    old = issuer.token()
    try:
        assert await verifier.verify_token(old) is not None
        issuer.key = ec.generate_private_key(ec.SECP256R1())
        before = issuer.fetches
        await until(lambda: issuer.fetches >= before + 2, "the keys are fetched again")
        assert await verifier.verify_token(old) is None
        assert await verifier.verify_token(issuer.token()) is not None
    finally:
        fetching.cancel()


async def test_an_issuer_that_sends_nonsense_costs_nobody_a_known_key(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings())
    assert await verifier.verify_token(issuer.token()) is not None
    verifier.keys._client.uri = issuer.jwks_url.replace("http://", "nonsense://")  # pyright: ignore[reportPrivateUsage]
    fetching = asyncio.create_task(verifier.keys.keep_fresh())
    await asyncio.sleep(0)
    assert await verifier.verify_token(issuer.token(kid="k2")) is None
    assert await verifier.verify_token(issuer.token()) is not None
    assert not fetching.done(), "it asks again later"
    fetching.cancel()


async def test_an_issuer_out_of_reach_refuses_everybody(issuer: Issuer) -> None:
    settings = issuer.settings().model_copy(update={"jwks_url": "http://127.0.0.1:1/jwks"})
    assert await JwtVerifier(settings).verify_token(issuer.token()) is None


def test_the_metadata_is_where_clients_look_for_it(issuer: Issuer) -> None:
    """RFC 9728, section 3.1."""
    assert metadata_path(AUDIENCE) == "/.well-known/oauth-protected-resource/mcp"
    assert metadata_url(AUDIENCE) == "https://cellblock.example/.well-known/oauth-protected-resource/mcp"
    found = resource_metadata(issuer.settings())
    assert (found["resource"], found["authorization_servers"]) == (AUDIENCE, [ISSUER])
