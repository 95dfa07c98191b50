"""Who may ask: a token of this machine, and tokens of an authorization server."""

import asyncio
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cellblock.base.errors import ConfigError
from cellblock.base.store import LocalStore
from cellblock.base.tasks import in_background
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.serve.http import caller
from cellblock.serve.http.caller import JwtVerifier, challenge_of, metadata_path, resource_metadata
from cellblock.serve.http.token import OwnTokens, ensure_tokens, read_token
from support.identity_provider import AUDIENCE, ISSUER, Issuer
from support.waits import until, within


async def accepted(verifier: OwnTokens | JwtVerifier, *tokens: str) -> list[bool]:
    return [await verifier.verify_token(token) is not None for token in tokens]


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    (token,) = ensure_tokens(file)
    assert len(token) == 43
    assert [path.stat().st_mode & 0o777 for path in (file, file.parent)] == [0o600, 0o700]
    assert ensure_tokens(file) == [token]
    assert ensure_tokens(tmp_path / "other") != [token]
    assert [path.name for path in file.parent.iterdir()] == ["token"]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    ensure_tokens(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"0640.*chmod 600"):
        ensure_tokens(file)


@pytest.mark.parametrize("text", ["", "short", "x" * 31, "with a space in the middle of the token", "ü" * 40])
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        ensure_tokens(file)
    assert str(file) in str(raised.value)
    assert not text or text not in str(raised.value)


async def test_two_are_accepted_while_clients_change(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{'a' * 32}\n\n {'b' * 40}\r\n")
    assert read_token(file) == "a" * 32
    verifier = OwnTokens(ensure_tokens(file))
    assert await accepted(verifier, "a" * 32, "b" * 40) == [True, True]
    assert await accepted(verifier, "a" * 40, "b" * 32, "a" * 32 + "\n" + "b" * 40) == [False] * 3
    for text, said in (
        ("\n".join(letter * 32 for letter in "abc"), "3 tokens, and may hold 2"),
        (f"{'a' * 32}\nshort", "at least 32"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_token(file)


async def test_only_the_very_token_is_accepted() -> None:
    wrong = ("", "a" * 42, "a" * 44, "a" * 42 + "b", "A" * 43, "ÿ" * 43)
    assert await accepted(OwnTokens(["a" * 43]), "a" * 43, *wrong) == [True] + [False] * 6


async def test_a_named_one_says_whom_it_is_for(tmp_path: Path) -> None:
    shown: list[bool] = []
    verifier = OwnTokens(["a" * 43], lambda: shown.append(True))
    verifier.named = NamedTokens(LocalStore(tmp_path))
    token = verifier.named.create("ci")
    access = await verifier.verify_token(token)
    assert access is not None and access.subject == access.client_id == "token:ci" and shown == [True]
    of_the_file = await verifier.verify_token("a" * 43)
    assert of_the_file is not None and of_the_file.subject is None and shown == [True]
    other_names = (token.replace(".ci.", ".cd."), token.replace(".ci.", ".ÿ."))
    assert await accepted(verifier, token + "a", token[:-1], token[1:], *other_names) == [False] * 5
    verifier.named.revoke("ci")
    assert await accepted(verifier, token) == [False]


async def test_a_good_token_names_its_subject(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings(scopes=["run"]))
    access: Any = await verifier.verify_token(issuer.token(scope="run other", client_id="editor"))
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
        {"sub": ""},
        {"sub": "\ud800"},
        {"exp": None},
        {"exp": int(time.time()) - 3600},
        {"nbf": int(time.time()) + 3600},
        {"scope": "walk"},
        {"scope": ["run"]},
        {"kid": "k2"},
    ],
    ids=[
        "iss",
        "aud",
        "no aud",
        "no sub",
        "empty sub",
        "sub",
        "no exp",
        "exp",
        "nbf",
        "scope",
        "scopes",
        "kid",
    ],
)
async def test_a_token_that_is_wrong_in_one_thing_is_refused(issuer: Issuer, claims: dict[str, Any]) -> None:
    verifier = JwtVerifier(issuer.settings(scopes=["run"]))
    assert await accepted(verifier, issuer.token(**{"scope": "run", **claims})) == [False]


async def test_forged_signatures_are_refused(issuer: Issuer) -> None:
    public = issuer.key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    unsigned = jwt.encode({"iss": ISSUER, "sub": "ada"}, None, algorithm="none", headers={"kid": "k1"})
    forged = (
        issuer.token(key=ec.generate_private_key(ec.SECP256R1())),
        issuer.token(key=public, algorithm="HS256"),
        *(unsigned, "", ".", "a.b.c", "ÿ" * 50, issuer.token() + "x"),
    )
    assert await accepted(JwtVerifier(issuer.settings()), *forged) == [False] * 8


async def test_made_up_key_ids_do_not_flood_the_issuer(issuer: Issuer) -> None:
    before = issuer.fetches
    made_up = [issuer.token(kid=f"made up {number}") for number in range(20)]
    assert await accepted(JwtVerifier(issuer.settings()), *made_up) == [False] * 20
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
    monkeypatch.setattr(caller, "KEYS_FOR_SECONDS", 0.01)
    verifier, old = JwtVerifier(issuer.settings()), issuer.token()
    async with in_background(verifier.keys.keep_fresh()):
        assert await accepted(verifier, old) == [True]
        issuer.key = ec.generate_private_key(ec.SECP256R1())
        before = issuer.fetches
        await until(lambda: issuer.fetches >= before + 2, "the keys are fetched again")
        assert await accepted(verifier, old, issuer.token()) == [False, True]


async def test_an_issuer_that_sends_nonsense_costs_nobody_a_known_key(issuer: Issuer) -> None:
    verifier = JwtVerifier(issuer.settings())
    assert await verifier.verify_token(issuer.token()) is not None
    verifier.keys._client.uri = issuer.jwks_url.replace("http://", "nonsense://")  # pyright: ignore[reportPrivateUsage]
    fetching = asyncio.create_task(verifier.keys.keep_fresh())
    await asyncio.sleep(0)
    assert await accepted(verifier, issuer.token(kid="k2"), issuer.token()) == [False, True]
    assert not fetching.done(), "it asks again later"
    fetching.cancel()


async def test_an_issuer_out_of_reach_refuses_everybody(issuer: Issuer) -> None:
    settings = issuer.settings().model_copy(update={"jwks_url": "http://127.0.0.1:1/jwks"})
    assert await accepted(JwtVerifier(settings), issuer.token()) == [False]


def test_the_metadata_is_where_clients_look_for_it(issuer: Issuer) -> None:
    """RFC 9728, section 3.1."""
    assert metadata_path(AUDIENCE) == "/.well-known/oauth-protected-resource/mcp"
    url = "https://cellblock.example/.well-known/oauth-protected-resource/mcp"
    assert challenge_of(issuer.settings()) == f'Bearer resource_metadata="{url}"'
    found = resource_metadata(issuer.settings())
    assert (found["resource"], found["authorization_servers"]) == (AUDIENCE, [ISSUER])
