"""Cellblock checks tokens that it gives out itself: that of a file, which is made on the first start and which only its
owner can read, and named ones."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cellblock.base.errors import ConfigError
from cellblock.base.state_dir import MARK_NAME, in_the_way
from cellblock_worker.base.folders import FILE, Folder, InTheWay
from cellblock_worker.base.private_files import OpenToOthers, read_named, read_private, write_private

if TYPE_CHECKING:
    # An editor that is attached needs a name of this file alone, and waits for each import.
    from mcp.server.auth.provider import AccessToken

    from cellblock.run.policy.named_tokens import NamedTokens

FILE_NAME: Final = "token"
"""Names the token file in the state directory."""

TOKEN_BYTES: Final = 32

MIN_CHARS: Final = 32
"""Sets the least length of a token of the user's own; ours have 43."""

MAX_CHARS: Final = 16 * 1024
"""Bounds what is read of a token file; tokens of authorization servers take a few KiB."""

MAX_TOKENS: Final = 2
"""Bounds the tokens of a file: the one that is shown, and one that is accepted beside it while clients change."""

SUBJECT: Final = "token"
"""Names who has shown the token of the file."""


def read_token(file: Path) -> str:
    """Returns the token in a file that is shown to daemons. Raises ConfigError: As `read_tokens`."""
    return read_tokens(file)[0]


def read_tokens(file: Path) -> list[str]:
    """Returns the tokens in a file, a line each: the one that is shown, and perhaps one that is accepted beside it.

    Raises:
        ConfigError: The file cannot be read, other users may read it, or it holds no token, or too many.
    """
    try:
        lines = _read(file).decode("ascii").splitlines()
    except InTheWay as error:
        raise in_the_way(error) from None
    except OpenToOthers as error:
        raise ConfigError(
            f"Other users may read the token file {file} (mode {error.mode:04o}).",
            hint=f"Make a new token: rm {file}. To keep this one: chmod 600 {file}.",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is no text"
        raise ConfigError(
            f"The token file {file} cannot be read: {why}.", hint="Check --token-file."
        ) from None
    tokens = [token for line in lines if (token := line.strip())]
    if not tokens or not all(_is_token(token) for token in tokens):
        raise ConfigError(
            f"The token file {file} holds no token of at least {MIN_CHARS} visible characters.",
            hint=f"Put in the one that `cellblock token create` has shown; a daemon makes its own anew: rm {file}.",
        )
    if len(tokens) > MAX_TOKENS:
        raise ConfigError(
            f"The token file {file} holds {len(tokens)} tokens, and may hold {MAX_TOKENS}.",
            hint="Keep the one that is shown, and below it the one that is accepted, too.",
        )
    return tokens


def _is_token(text: str) -> bool:
    return len(text) >= MIN_CHARS and all(33 <= ord(character) <= 126 for character in text)


def _read(file: Path) -> bytes:
    """Returns what a token file holds: outside a state directory it may be a link, as a container's secrets are."""
    with Folder.named(file.parent) as folder:
        if folder.holds(MARK_NAME, FILE):
            return read_private(folder, file.name, MAX_CHARS)
    return read_named(file, MAX_CHARS)[0]


def ensure_tokens(file: Path) -> list[str]:
    """Returns the tokens in a file, which is made when it is missing. Two daemons that start at once agree on one.

    Raises:
        ConfigError: As `read_tokens`, or the file cannot be made.
    """
    if not file.exists():
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with Folder.named(file.parent) as folder:
                token = secrets.token_urlsafe(TOKEN_BYTES) + "\n"
                write_private(folder, file.name, token.encode(), replace=False)
        except OSError as error:
            raise ConfigError(
                f"The token file {file} cannot be made: {error}.", hint="Check --token-file."
            ) from None
    return read_tokens(file)


class OwnTokens:
    """Accepts the tokens of the token file and named ones; an `mcp.server.auth.provider.TokenVerifier`.

    Args:
        tokens: Those of the file.
        on_named: Called when another one is shown.

    Attributes:
        named: The others; None: there are none.
    """

    def __init__(self, tokens: Sequence[str], on_named: Callable[[], object] = lambda: None) -> None:
        self._tokens = [token.encode() for token in tokens]
        self.named: NamedTokens | None = None
        self._on_named = on_named

    async def verify_token(self, token: str) -> AccessToken | None:
        """Returns the client that shows this token, or None. Takes the same time for every wrong token of the right
        length."""
        from mcp.server.auth.provider import AccessToken

        from cellblock.base.settings.policy import NAMED

        given = token.encode("latin-1")
        # Each is compared, whichever is right.
        if any([secrets.compare_digest(given, one) for one in self._tokens]):  # noqa: C419
            return AccessToken(token="", client_id=SUBJECT, scopes=[])
        name = self.named.name_of(token) if self.named is not None else None
        if name is None:
            return None
        self._on_named()
        return AccessToken(token="", client_id=NAMED + name, subject=NAMED + name, scopes=[])
