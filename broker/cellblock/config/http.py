"""Settings of the HTTP front-end say what one client, and all together, may take of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cellblock.config.sections import MIB, HttpUrl, Positive, Section


class OAuthSettings(Section):
    """Serves teams: tokens of an authorization server instead of the one in the token file."""

    issuer: HttpUrl
    """Says who must have signed a token: its claim `iss`, to the letter."""

    audience: HttpUrl
    """Says for whom a token must be: its claim `aud`, which is the URL that clients reach this front-end by (RFC
    8707)."""

    jwks_url: HttpUrl
    """Names where the issuer publishes its public keys."""

    scopes: list[str] = Field(default_factory=list[str])
    """Lists the scopes that a token must have, all of them."""


class HttpSettings(Section):
    """Bounds what clients of `cellblock serve --http` may take."""

    max_body_bytes: Annotated[int, Field(ge=4096)] = 8 * MIB
    """Caps one request's body, in bytes: the largest script is 1 MiB, and six times that when every character is
    escaped."""

    max_held_bytes: Annotated[int, Field(ge=65536)] = 128 * MIB
    """Caps what all requests that are read, wait or run take of the broker's memory, in bytes; a client may have a
    quarter, and of several principals (`oauth`, named tokens) one may have half. More is refused with 429."""

    max_connections: Positive = 256
    """Caps the open connections. For one more, an idle one is closed: of those that have shown no token first, for
    which a quarter of the places is kept. Of several principals one has half of the places. A client holds two or
    three."""

    max_sessions: Positive = 128
    """Caps the MCP sessions at the same time, half of them for one of several principals; one more is refused with
    503. An editor holds one."""

    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] = 200
    """Caps the HTTP requests of one client in the long run, over twice what two processors can run; more get 429. A
    client is an MCP session; requests without one count for who is authenticated and the address they come from."""

    burst: Positive = 400
    """Caps the requests of one client at once, after a pause."""

    session_idle_ms: Positive = 30 * 60 * 1000
    """Bounds how long a session without any request or open stream is remembered, in milliseconds."""

    header_timeout_ms: Positive = 10_000
    """Bounds the time from a connection's first moment to the end of a request's headers, in milliseconds; clients take
    one packet."""

    body_timeout_ms: Positive = 30_000
    """Bounds the time for a request's body, in milliseconds: 8 MiB at 2.2 Mbit/s."""

    stall_timeout_ms: Positive = 60_000
    """Bounds how long a client may leave an answer unread, without taking any of it, in milliseconds."""

    drain_ms: Annotated[int, Field(ge=0)] = 30_000
    """Bounds how long the runs in flight may still go on after SIGTERM, in milliseconds; then they are killed."""

    idle_stop_ms: Positive = 30 * 60 * 1000
    """Bounds how long a daemon that `connect` has started goes on without a client, in milliseconds. Each `connect`
    that may start one counts as a client: it gives a sign of life every 20 s."""

    allowed_hosts: list[Annotated[str, Field(pattern=r"^[^\s/@]+$")]] = Field(default_factory=list[str])
    """Lists the `Host` headers (`name` or `name:port`) that are accepted beside the address listened on: the names
    by which clients or a proxy know this machine."""

    allowed_origins: list[Annotated[str, Field(pattern=r"^https?://[^\s/@]+$")]] = Field(
        default_factory=list[str]
    )
    """Lists the `Origin` headers that are accepted beside our own. No answer carries CORS headers: pages of other
    origins still cannot read any."""

    oauth: OAuthSettings | None = None
    """Has only tokens of this authorization server accepted when given, and the token file not used."""
