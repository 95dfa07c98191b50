"""Scopes that a login is short of."""

from __future__ import annotations

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from cellblock.tools.upstream.auth.record import MAX_WANTED_CHARS, LoginRecord, union_scopes


def record(granted: str | None) -> LoginRecord:
    return LoginRecord(
        server_url="https://notes.example/mcp",
        client=OAuthClientInformationFull(client_id="c"),
        tokens=OAuthToken(access_token="secret", scope=granted),
    )


def test_union() -> None:
    assert union_scopes("a b", None, "", "b  c a") == "a b c"


def test_what_was_granted_is_wanted_again() -> None:
    wanting = record("read").wanting("write").wanting("admin write")
    assert wanting.wanted_scope == "read write admin"
    assert wanting.wanting("write") == wanting
    assert record(None).wanting("write").wanted_scope == "write"
    # A renewal changes nothing of it, and it is nothing that has to be hidden.
    renewed = wanting.with_tokens(OAuthToken(access_token="other"))
    assert (renewed.wanted_scope, list(renewed.secrets())) == ("read write admin", ["other"])


def test_a_server_that_names_others_each_time_does_not_fill_the_disk() -> None:
    wanting = record("read")
    for number in range(1_000):
        wanting = wanting.wanting(f"scope-{number}")
        assert len(wanting.wanted_scope or "") <= MAX_WANTED_CHARS
    assert (wanting.wanted_scope or "").startswith("read ")
    assert (wanting.wanted_scope or "").endswith(" scope-999")
