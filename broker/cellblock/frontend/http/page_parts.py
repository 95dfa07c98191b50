"""Page_parts makes the answers of the pages, with the headers that guard each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

Header = tuple[bytes, bytes]

HEADERS: Final[tuple[Header, ...]] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


@dataclass(frozen=True, slots=True)
class Page:
    """Holds an HTTP answer with its whole body."""

    status: int
    body: bytes = b""
    headers: tuple[Header, ...] = ()


def page_of(body: bytes, kind: str, status: int = HTTPStatus.OK) -> Page:
    """Makes an answer of this content type."""
    return Page(status, body, ((b"content-type", kind.encode()), *HEADERS))


def json_page(value: Any) -> Page:
    """Makes an answer of JSON."""
    # Lone surrogates can come in a script's log; they have no UTF-8, but they have a JSON escape.
    return page_of(json.dumps(value).encode(), "application/json")


def text_page(status: int, body: bytes) -> Page:
    """Makes an answer of plain text."""
    return page_of(body, "text/plain; charset=utf-8", status)
