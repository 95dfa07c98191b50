"""Puts an access token on every request to one upstream server, and gets a new one when it is refused or too narrow."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final, Protocol

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

_SCOPES: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e][\x20\x21\x23-\x5b\x5d-\x7e]{0,199}")


class TokenSource(Protocol):
    """Gives tokens for one server. Neither method raises: what is wrong is kept for whoever words the refusal."""

    async def token(self) -> str | None:
        """Returns a token that is good for now, or None."""
        ...

    async def renewed(
        self, used: str | None, request: httpx2.Request, refused: httpx2.Response
    ) -> str | None:
        """Returns a token to try instead of `used`, which the server has refused with 401; None when there is none."""
        ...

    def told(self, problem: str | None) -> None:
        """Takes what the server itself says of the last token: None that it is good."""
        ...

    async def widened(self, used: str, scopes: str | None) -> str | None:
        """Returns a token to try instead of `used`, which does not reach far enough; None when only a person could
        grant it."""
        ...

    async def lacks(self, scopes: str | None) -> None:
        """Takes note that the last token does not reach far enough, as the server says; `scopes` are those that it
        names."""
        ...


class BearerAuth(httpx2.Auth):
    """Puts tokens on the requests of an HTTP client that talks to one server only."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sends the request, with another token again if the first is refused, and once more if it is too narrow."""
        token = await self._tokens.token()
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            token = await self._tokens.renewed(token, request, response)
            if token is None:
                return
            request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code == 401:
                self._tokens.told("the server refuses a token that was just made for it")
                return
        if token is not None and _falls_short(response):
            wider = await self._tokens.widened(token, _missing(response))
            if wider is not None:
                request.headers["Authorization"] = f"Bearer {wider}"
                response = yield request
        if _falls_short(response):
            await self._tokens.lacks(_missing(response))
        elif response.status_code < 400:
            self._tokens.told(None)


def _falls_short(response: httpx2.Response) -> bool:
    """Says whether the token is good, and not for this (RFC 6750, section 3.1). The request was not carried out."""
    return (
        response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _missing(refused: httpx2.Response) -> str | None:
    """Returns the scopes that a refusal asks for, where it names some in their own characters (RFC 6749, section
    3.3)."""
    scopes = extract_scope_from_www_auth(refused) or ""
    return scopes if _SCOPES.fullmatch(scopes) else None
