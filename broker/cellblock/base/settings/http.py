"""Settings of the HTTP front-end say what one client, and all together, may take of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cellblock.base.settings.sections import HttpUrl, Positive, Section


class OAuthSettings(Section):
    """Serves teams with tokens of an authorization server, in place of the token in the token file."""

    issuer: HttpUrl
    """Names the issuer of accepted tokens: their claim `iss`, character by character."""

    audience: HttpUrl
    """Names the audience of accepted tokens: their claim `aud`. It is the URL at which clients reach this front-end
    (RFC 8707)."""

    jwks_url: HttpUrl
    """Names the URL at which the issuer publishes its public keys."""

    scopes: list[str] = Field(default_factory=list[str])
    """Lists the scopes that a token must have, all of them."""


class HttpSettings(Section):
    """Bounds the resources that clients of `cellblock serve --http` may use."""

    max_sessions: Positive = 128
    """Caps the MCP sessions at the same time. With several principals (`oauth`, named tokens) one may have half of
    them. A further session gets 503. An editor holds one. There may be two connections for each session, at least
    256, and all requests together may take 1 MiB of memory for each, at least 128 MiB."""

    requests_per_second: Annotated[float, Field(gt=0, le=1_000_000)] = 200
    """Caps the HTTP requests of one client in the long run, at over twice what two processors can run. Further
    requests get 429. A client is an MCP session. Requests without a session count for the pair of authenticated
    principal and address. After a pause a client may send those of two seconds at once."""

    drain_ms: Annotated[int, Field(ge=0)] = 30_000
    """Bounds how long the runs in flight may continue after SIGTERM, in milliseconds; then they are killed."""

    allowed_hosts: list[Annotated[str, Field(pattern=r"^[^\s/@]+$")]] = Field(default_factory=list[str])
    """Lists the `Host` headers (`name` or `name:port`) that are accepted in addition to the address of the daemon:
    the names by which clients or a proxy know this machine."""

    allowed_origins: list[Annotated[str, Field(pattern=r"^https?://[^\s/@]+$")]] = Field(
        default_factory=list[str]
    )
    """Lists the `Origin` headers that are accepted in addition to the daemon's own. No answer carries CORS headers,
    so pages of other origins still cannot read any."""

    oauth: OAuthSettings | None = None
    """Has only tokens of this authorization server accepted when given, and the token file not used."""
