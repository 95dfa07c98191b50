"""The token file, and who shows a token that Cellblock gave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.store import LocalStore
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.serve.http.token import OwnTokens, ensure_tokens, read_token


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    (token,) = ensure_tokens(file)
    assert len(token) == 43
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
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
    for right in ("a" * 32, "b" * 40):
        assert await verifier.verify_token(right) is not None
    for wrong in ("a" * 40, "b" * 32, "a" * 32 + "\n" + "b" * 40):
        assert await verifier.verify_token(wrong) is None
    file.write_text("\n".join(letter * 32 for letter in "abc"))
    with pytest.raises(ConfigError, match="3 tokens, and may hold 2"):
        read_token(file)
    file.write_text(f"{'a' * 32}\nshort")
    with pytest.raises(ConfigError, match="at least 32"):
        read_token(file)


async def test_only_the_very_token_is_accepted() -> None:
    verifier = OwnTokens(["a" * 43])
    assert await verifier.verify_token("a" * 43) is not None
    for wrong in ("", "a" * 42, "a" * 44, "a" * 42 + "b", "A" * 43, "ÿ" * 43):
        assert await verifier.verify_token(wrong) is None


async def test_a_named_one_says_whom_it_is_for(tmp_path: Path) -> None:
    shown: list[bool] = []
    named = NamedTokens(LocalStore(tmp_path))
    verifier = OwnTokens(["a" * 43], lambda: shown.append(True))
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
