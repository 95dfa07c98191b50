"""Own_headers puts a person's own secrets into the headers of a server that knows no OAuth: API keys."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import httpx2

from cellblock.base.redaction import Redactor
from cellblock.base.settings.server import OWN_SECRET, ServerConfig
from cellblock.base.store import Stamp, Store
from cellblock.tools.upstream.auth.bearer import Login
from cellblock.tools.upstream.definitions import file_stem

KIND: Final = "own-secrets"

MAX_BYTES: Final = 64 * 1024
HASH_CHARS: Final = 32


class OwnSecrets:
    """Keeps the secrets of one person by their names; of all brokers that share a `Store`. Everything blocks.

    Args:
        store: Where.
        person: Whose, as `person_of` has it.
    """

    def __init__(self, store: Store, person: str) -> None:
        self._shelf = store.shelf(KIND, MAX_BYTES)
        self._prefix = f"{file_stem('of', person, HASH_CHARS)}-"

    def stamp(self, name: str) -> Stamp | None:
        """Changes when the secret does; None without one."""
        return self._shelf.stamp(self._key(name))

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none that can be read."""
        with contextlib.suppress(OSError, ValueError):
            return self._shelf.read(self._key(name)).decode("utf-8", "surrogatepass")
        return None

    def put(self, name: str, value: str) -> None:
        """Keeps a secret, in the place of an older one. Raises OSError."""
        self._shelf.write(self._key(name), value.encode("utf-8", "surrogatepass"), replace=True)

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises OSError."""
        return self._removed(self._key(name))

    def remove_all(self) -> int:
        """Forgets all secrets of the person, and says how many there were. Raises OSError."""
        own = [key for key in self._shelf.names() if key.startswith(self._prefix)]
        return sum(map(self._removed, own))

    def _removed(self, key: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._shelf.remove(key)
            return True
        return False

    def _key(self, name: str) -> str:
        return f"{self._prefix}{file_stem(name, name, HASH_CHARS)}"


class OwnHeaders(Login):
    """Sends headers with a person's own secrets, as they are now.

    Args:
        server: The server's name.
        config: Its entry, whose headers name the secrets.
        secrets: The person's.
        redactor: As for `Login`.
    """

    def __init__(self, server: str, config: ServerConfig, secrets: OwnSecrets, redactor: Redactor) -> None:
        super().__init__(server, redactor)
        self._headers, self._secrets = config.own_headers, secrets
        self._names = sorted({name for text in self._headers.values() for name in OWN_SECRET.findall(text)})
        self.hint = f"ask whoever runs Cellblock to set your own {', '.join(self._names)}"

    def stamp(self) -> tuple[Stamp, ...] | None:
        """Changes when a secret does; None where one is not there."""
        stamps = [self._secrets.stamp(name) for name in self._names]
        known = [one for one in stamps if one is not None]
        return tuple(known) if len(known) == len(stamps) else None

    async def mark(self) -> str:
        """Returns what names the secrets that there are; empty where one is not there."""
        stamp = self.stamp()
        return "" if stamp is None else str(stamp)

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Puts the headers on a request, and none whose secret is not there."""
        found = {name: self._secrets.get(name) for name in self._names}
        self.redactor.add(value for value in found.values() if value is not None)
        for header, text in self._headers.items():
            if any(found[name] is None for name in OWN_SECRET.findall(text)):
                request.headers.pop(header, None)
            else:
                request.headers[header] = OWN_SECRET.sub(lambda one: found[one[1]] or "", text)
        yield request
