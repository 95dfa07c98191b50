"""Who shows a token that Cellblock gave out."""

from __future__ import annotations

from pathlib import Path

from cellblock.frontend.http.own_tokens import OwnTokens
from cellblock.policy.named_tokens import NamedTokens


async def test_only_the_very_token_is_accepted() -> None:
    verifier = OwnTokens("a" * 43)
    assert await verifier.verify_token("a" * 43) is not None
    for wrong in ("", "a" * 42, "a" * 44, "a" * 42 + "b", "A" * 43, "ÿ" * 43):
        assert await verifier.verify_token(wrong) is None


async def test_a_named_one_says_whom_it_is_for(tmp_path: Path) -> None:
    shown: list[bool] = []
    named = NamedTokens(tmp_path)
    verifier = OwnTokens("a" * 43, lambda: shown.append(True))
    verifier.named = named
    token = named.create("ci")
    access = await verifier.verify_token(token)
    assert access is not None and access.subject == access.client_id == "token:ci" and shown == [True]
    of_the_file = await verifier.verify_token("a" * 43)
    assert of_the_file is not None and of_the_file.subject is None and shown == [True]
    for wrong in (
        token + "a",
        token[:-1],
        token.replace(".ci.", ".cd."),
        token.replace(".ci.", ".ÿ."),
        token[1:],
    ):
        assert await verifier.verify_token(wrong) is None
    named.revoke("ci")
    assert await verifier.verify_token(token) is None
