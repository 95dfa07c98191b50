"""What a script reads of an exception holds no credential, and stays text."""

from __future__ import annotations

import pytest

from cellblock.base.secrets.safe_text import MAX_CHARS, describe_exception, safe_text, safe_traceback

SECRET = "s3cr3t-Value_99"


@pytest.mark.parametrize(
    "text",
    [
        f"could not connect to postgres://admin:{SECRET}@db.example/main",
        f"https://{SECRET}@host/path failed",
        f"Authorization: Bearer {SECRET}",
        f"headers={{'Authorization': 'Basic {SECRET}'}}",
        f"login failed: password={SECRET} user=ada",
        f'{{"api_key": "{SECRET}", "other": 1}}',
        f"{{'client_secret': '{SECRET}'}}",
        f"MY_ACCESS_TOKEN={SECRET}",
        f"the password: {SECRET}",
        f"?access_token={SECRET}&x=1",
        f"sk-{SECRET}{SECRET}",
        f"ghp_{SECRET.replace('-', 'x')}{SECRET.replace('-', 'x')}",
    ],
)
def test_credentials_are_left_out(text: str) -> None:
    made = safe_text(text)
    assert SECRET not in made and "[redacted]" in made


def test_secrets_of_the_environment_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_API_KEY", "plain-word-of-mine")
    assert safe_text("no entry plain-word-of-mine here") == "no entry [redacted] here"


@pytest.mark.parametrize(
    "text",
    [
        "hours must not be negative",
        "no such key: 'name'",
        "the token ended unexpectedly at line 3",
        "https://example.com/a?b=c is not known",
        "expected a < b, got 3",
        "tokens used: 12",
        "unexpected token: INDENT",
        "línea uno\nline two\ttabbed",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert safe_text(text) == text


def test_texts_are_cut_and_hold_no_control_characters() -> None:
    assert safe_text("a\x1b[31mb\x00c\u202ed") == "a\ufffd[31mb\ufffdc\ufffdd"
    assert len(safe_text("x" * 1_000_000)) == MAX_CHARS + 1


def test_no_half_of_a_secret_stays_where_a_long_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_API_KEY", "first-part-" + "z" * 60)
    for room in [*range(7_900, 8_080, 9), *range(19_900, 20_080, 9)]:
        # What stands before is redacted to a few characters, so that the end comes within what is shown.
        text = "password=" + "x" * (room - 10) + " first-part-" + "z" * 60 + " " + "y" * 30_000
        assert "first-part" not in safe_text(text)
    assert safe_text("ab " * 10_000) == ("ab " * 1_000)[:MAX_CHARS] + "…"


def test_a_long_word_before_the_sign_is_no_hiding_place() -> None:
    for word in ("secret-" * 40, "my-" * 40 + "secret", "secret" + "_x" * 30):
        assert SECRET not in safe_text(f"{word}={SECRET}")


def test_exceptions_whose_text_cannot_be_had() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe_exception(Mute()) == "Mute"
    assert describe_exception(ValueError()) == "ValueError"
    assert describe_exception(KeyError("x")) == "KeyError: 'x'"


def test_a_traceback_for_the_log_has_places_and_no_credential() -> None:
    try:
        raise ValueError(f"password={SECRET}")
    except ValueError as error:
        made = safe_traceback(error, describe_exception(error))
    assert "test_safe_text.py" in made and SECRET not in made
