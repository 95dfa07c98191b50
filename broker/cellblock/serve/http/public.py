"""Public pages ask for no token: whether the daemon lives, whether it is ready, and where tokens are to be had."""

from __future__ import annotations

from collections.abc import Callable

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cellblock.base.settings.http import OAuthSettings
from cellblock.serve.http.in_flight import RETRY_SECONDS, InFlight
from cellblock.serve.http.oauth import metadata_path, resource_metadata

NO_STORE = {"cache-control": "no-store"}


def public_routes(
    in_flight: InFlight,
    ready: Callable[[bool], bool],
    trouble: Callable[[], str | None],
    oauth: OAuthSettings | None,
    guard: list[Middleware],
) -> list[Route]:
    """Returns the public pages.

    Args:
        in_flight: Knows whether the daemon is stopping.
        ready: Whether scripts can run; given whether requests are being answered, which take workers.
        trouble: Says what is wrong with what several brokers share.
        oauth: The authorization server, if there is one.
        guard: Stands in front.
    """

    async def live(_: Request) -> Response:
        return PlainTextResponse("ok\n", headers=NO_STORE)

    async def is_ready(_: Request) -> Response:
        wrong = trouble()
        if in_flight.draining or not ready(in_flight.busy):
            said = "" if wrong is None else f"not ready: {wrong}\n"
            return PlainTextResponse(said, 503, {**NO_STORE, "retry-after": str(RETRY_SECONDS)})
        return PlainTextResponse("ok\n" if wrong is None else f"ok, but {wrong}\n", headers=NO_STORE)

    async def metadata(_: Request) -> Response:
        return JSONResponse(None if oauth is None else resource_metadata(oauth), headers=NO_STORE)

    paths = {"/livez": live, "/readyz": is_ready}
    if oauth is not None:
        paths[metadata_path(oauth.audience)] = metadata
    return [Route(path, page, middleware=guard) for path, page in paths.items()]
