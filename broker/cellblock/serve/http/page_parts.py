"""Page_parts makes the answers of the pages, with the headers that guard each of them."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import Response

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def page_of(body: bytes | str, kind: str, status: int = HTTPStatus.OK) -> Response:
    """Makes an answer of this content type."""
    return Response(body, status, {**HEADERS, "content-type": kind})


def json_page(value: Any) -> Response:
    """Makes an answer of JSON."""
    # Lone surrogates can come in a script's log; they have no UTF-8, but they have a JSON escape.
    return page_of(json.dumps(value), "application/json")


def text_page(status: int, body: bytes | str) -> Response:
    """Makes an answer of plain text."""
    return page_of(body, "text/plain; charset=utf-8", status)
