"""State_keys are those of the journals of a broker, given or made, and they seal what brokers share, with the key that
they share; while they change it, two are accepted.

What is sealed cannot be read without the key, nor changed, nor put in the place of something else.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import logging
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cellblock.base.database import StoreError
from cellblock.base.json import is_object
from cellblock.base.keyrings import KEYRING_SECONDS, Keyring, KeyringError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore, Store
from cellblock_worker.base.folders import Folder, InTheWay
from cellblock_worker.base.private_files import OpenToOthers, read_private, write_private

FORMAT: Final = 1
"""Counts the ways in which keys are derived and things sealed."""

NONCE_BYTES: Final = 12
ID_BYTES: Final = 8

logger = logging.getLogger("cellblock.journal")

KEY_FILE: Final = "journals.key"
"""Names the file in the state directory."""

KEY_BYTES: Final = 32

MAX_FILE_BYTES: Final = 4096


class WrongSeal(StoreError):
    """Tells that sealed bytes were changed, are another place's, or were sealed with a key that is not known here."""


class StateKeys:
    """Seals, and opens what was sealed.

    Args:
        keys: The one that seals, and those that open, too.

    Attributes:
        ids: Names the keys, without telling them.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self.keys: Final = tuple(keys)
        self.ids: Final = tuple(key_id(key) for key in keys)

    def sealed(self, place: Sequence[str], body: bytes) -> bytes:
        """Returns bytes for a place, which is named by any texts."""
        nonce = os.urandom(NONCE_BYTES)
        sealed = _cipher(self.keys[0], place).encrypt(nonce, body, _bound(place))
        return bytes.fromhex(self.ids[0]) + nonce + sealed

    def opened(self, place: Sequence[str], sealed: bytes) -> bytes:
        """Returns the bytes that were sealed for a place. Raises WrongSeal."""
        from cryptography.exceptions import InvalidTag

        named, nonce = sealed[:ID_BYTES].hex(), sealed[ID_BYTES : ID_BYTES + NONCE_BYTES]
        if named not in self.ids:
            raise WrongSeal("it was written with another key than those in use")
        key = self.keys[self.ids.index(named)]
        try:
            return _cipher(key, place).decrypt(nonce, sealed[ID_BYTES + NONCE_BYTES :], _bound(place))
        except (InvalidTag, ValueError):
            raise WrongSeal("it was changed after it was written") from None

    def is_newest(self, sealed: bytes) -> bool:
        return sealed[:ID_BYTES].hex() == self.ids[0]


def key_id(key: bytes) -> str:
    """Returns what names a key without telling it."""
    return derived_key(key, "key id", "", ID_BYTES).hex()


def derived_key(key: bytes, purpose: str, name: str, size: int) -> bytes:
    """Derives a key for one purpose from the one that is kept."""
    # Not at the top: nobody who keeps no runs is to wait for its import, 30 ms.
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = json.dumps(["cellblock journal", FORMAT, purpose, name]).encode()
    return HKDF(SHA256(), size, None, info).derive(key)


def _cipher(key: bytes, place: Sequence[str]) -> Any:
    """Returns the cipher of one place: with a key of its own, a chance nonce comes twice for none."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(derived_key(key, "sealed", json.dumps(place), 32))


def _bound(place: Sequence[str]) -> bytes:
    return json.dumps([FORMAT, *place]).encode()


def keys_of(store: Store, auth: AuthSettings, *, make: bool = True) -> Sequence[bytes]:
    """Returns the keys of a store's journals, as `Cipher` takes them; the arguments are as for `load_key`, which makes
    one where none is given. Raises StoreError."""
    if store.keys or not isinstance(store, LocalStore):
        return store.keys
    return (load_key(store.state_dir, auth, make=make),)


def load_key(state_dir: Path, settings: AuthSettings, *, make: bool = True) -> bytes:
    """Returns the key of a state directory's journals, `KEY_BYTES` long. Blocks, for the keyring's bound at most.

    Args:
        state_dir: The state directory.
        settings: Whether the keyring is used for a new key, and how long it is waited for.
        make: Makes the key where there is none.

    Raises:
        StoreError: There is none, others may read it, it is damaged, or the keyring does not give it.
    """
    file = state_dir / KEY_FILE
    try:
        with Folder.named(state_dir) as folder:
            try:
                return _key_in(read_private(folder, KEY_FILE, MAX_FILE_BYTES), file)
            except FileNotFoundError:
                if not make:
                    raise StoreError(f"there is no {file}, the key of the journals") from None
            return _made(folder, file, settings)
    except InTheWay as error:
        raise StoreError(str(error)) from None
    except OpenToOthers as error:
        said = f"others may read {file}, the key of the journals (mode {error.mode:04o}): chmod 600 {file}"
        raise StoreError(said) from None
    except OSError as error:
        raise StoreError(f"{file}, the key of the journals, cannot be used: {error.strerror}") from None


# ---- inside ------------------------------------------------------------------------------------------


def _made(folder: Folder, file: Path, settings: AuthSettings) -> bytes:
    keyring, key = Keyring(KEYRING_SECONDS), secrets.token_bytes(KEY_BYTES)
    text = base64.b64encode(key).decode()
    told: dict[str, Any] = {"version": 1, "key": text}
    if settings.keyring == "auto" and keyring.find():
        entry = f"journals-{secrets.token_hex(8)}"
        try:
            keyring.set(entry, text)
        except KeyringError as error:
            logger.warning("the key of the journals is kept in a file: %s", error.message)
        else:
            told = {"version": 1, "entry": entry}
    if write_private(folder, KEY_FILE, json.dumps(told).encode(), replace=False):
        return key
    # Another broker was faster.
    if "entry" in told:
        with contextlib.suppress(KeyringError):
            keyring.delete(told["entry"])
    return _key_in(read_private(folder, KEY_FILE, MAX_FILE_BYTES), file)


def _key_in(data: bytes, file: Path) -> bytes:
    damaged = f"{file}, the key of the journals, is damaged: without it, what is kept cannot be read"
    try:
        told: object = json.loads(data)
    except (ValueError, RecursionError):
        raise StoreError(damaged) from None
    if not is_object(told) or told.get("version") != 1:
        raise StoreError(damaged)
    text, entry = told.get("key"), told.get("entry")
    if isinstance(entry, str):
        try:
            text = Keyring(KEYRING_SECONDS).get(entry)
        except KeyringError as error:
            raise StoreError(f"the key of the journals cannot be had: {error.message}") from None
        if text is None:
            raise StoreError(f"the key of the journals is gone from the keyring: it has no {entry}")
    try:
        key = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreError(damaged)
    return key
