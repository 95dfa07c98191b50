"""Names what can go wrong with a login, in words that hold no secret."""

from __future__ import annotations

import shlex

from cellblock.base.errors import CellblockError, Fault


class LoginError(CellblockError):
    """Tells that a login, its renewal or its end has failed."""

    fault = Fault.UPSTREAM


class Refused(LoginError):
    """Tells what an authorization server has said instead of granting a token; `code` is its `error`."""

    code: str | None = None


class LoginEnded(LoginError):
    """Tells that the authorization server will not renew the login: only a new one helps.

    `forgotten` says that the client's registration is of no use either.
    """

    forgotten = False


class LoginStoreError(LoginError):
    """Tells that a kept login cannot be read or written."""

    fault = Fault.CELLBLOCK


def login_hint(server: str, page: str | None = None) -> str:
    """Says how to log in: at a page, for whoever is not at this machine, else by the command."""
    return f"log in at {page}" if page else f"run: cellblock auth login {shlex.quote(server)}"
