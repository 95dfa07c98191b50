"""Tokens of an authorization server, whose keys are fetched from a real HTTP server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.frontend.http.oauth import JwtVerifier, metadata_path, metadata_url, resource_metadata
from token_issuer import AUDIENCE, ISSUER, Issuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


async def test_a_good_token_names_its_subject(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings(scopes=["run"]))
    access = await verifier.verify_token(issuer.token(scope="run other", client_id="editor"))
    assert access is not None
    assert (access.subject, access.client_id, access.scopes) == ("ada", "editor", ["run", "other"])
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


async def test_an_issuer_out_of_reach_refuses_everybody(issuer: Issuer) -> None:
    settings = issuer.settings().model_copy(update={"jwks_url": "http://127.0.0.1:1/jwks"})
    assert await JwtVerifier(settings).verify_token(issuer.token()) is None


def test_the_metadata_is_where_clients_look_for_it(issuer: Issuer) -> None:
    """RFC 9728, section 3.1."""
    assert metadata_path(AUDIENCE) == "/.well-known/oauth-protected-resource/mcp"
    assert metadata_url(AUDIENCE) == "https://cellblock.example/.well-known/oauth-protected-resource/mcp"
    found = resource_metadata(issuer.settings())
    assert (found["resource"], found["authorization_servers"]) == (AUDIENCE, [ISSUER])
