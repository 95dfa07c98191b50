"""Own_headers puts a person's own secrets into the headers of a server that knows no OAuth: API keys."""

from __future__ import annotations

import contextlib
import json
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
        self._shelf, self._person = store.shelf(KIND, MAX_BYTES), person

    def stamp(self, name: str) -> Stamp | None:
        """Changes when the secret does; None without one."""
        return self._shelf.stamp(self._key(name))

    def get(self, name: str) -> str | None:
        """Returns a secret; None when there is none that can be read."""
        try:
            kept = json.loads(self._shelf.read(self._key(name)))
        except (OSError, ValueError):
            return None
        return kept["value"] if (kept["name"], kept["person"]) == (name, self._person) else None

    def put(self, name: str, value: str) -> None:
        """Keeps a secret, in the place of an older one. Raises OSError."""
        kept = {"name": name, "person": self._person, "value": value}
        self._shelf.write(self._key(name), json.dumps(kept).encode(), replace=True)

    def remove(self, name: str) -> bool:
        """Forgets a secret, and says whether there was one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            self._shelf.remove(self._key(name))
            return True
        return False

    def remove_all(self) -> int:
        """Forgets all secrets of the person, and says how many there were. Raises OSError."""
        found = 0
        for key in self._shelf.names():
            with contextlib.suppress(FileNotFoundError, ValueError):
                if json.loads(self._shelf.read(key))["person"] == self._person:
                    self._shelf.remove(key)
                    found += 1
        return found

    def _key(self, name: str) -> str:
        return file_stem(name, f"{name}\0{self._person}", HASH_CHARS)


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
