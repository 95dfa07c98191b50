"""The journals' key: made once, private, in the keyring where there is one."""

import json
from pathlib import Path

import keyring
import pytest
from keyring.backends.fail import Keyring as NoKeyring

from cellblock.base.database import StoreError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.state_keys import KEY_BYTES, KEY_FILE, load_key
from support.at_once import at_once
from support.ring import Ring

IN_FILE = AuthSettings(keyring="off")


def test_a_key_is_made_once_and_is_private(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no .*journals\.key"):
        load_key(tmp_path, IN_FILE, make=False)
    key = load_key(tmp_path, IN_FILE)
    assert len(key) == KEY_BYTES and load_key(tmp_path, IN_FILE, make=False) == key
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [KEY_FILE]
    (tmp_path / "other").mkdir()
    assert load_key(tmp_path / "other", IN_FILE) != key


def test_brokers_that_start_at_once_agree_on_one(tmp_path: Path, ring: Ring) -> None:
    keys = at_once(lambda settings: load_key(tmp_path, settings), [IN_FILE, AuthSettings()] * 4)
    assert len(keys) == 8 and len(set(keys)) == 1
    assert len(ring.entries) <= 1, "what the slower ones put into the keyring stays there"


def test_the_keyring_has_the_key_where_there_is_one(tmp_path: Path, ring: Ring) -> None:
    key = load_key(tmp_path, AuthSettings())
    ((_, entry),) = ring.entries
    assert json.loads((tmp_path / KEY_FILE).read_bytes()) == {"version": 1, "entry": entry}
    assert load_key(tmp_path, AuthSettings()) == key == load_key(tmp_path, IN_FILE)
    ring.locked = True
    with pytest.raises(StoreError, match="cannot be had: The keyring has failed"):
        load_key(tmp_path, AuthSettings())
    ring.locked = False
    ring.entries.clear()
    with pytest.raises(StoreError, match=f"it has no {entry}"):
        load_key(tmp_path, AuthSettings())


@pytest.mark.parametrize("locked", [True, False])
def test_without_a_keyring_that_keeps_it_the_key_is_in_the_file(
    tmp_path: Path, ring: Ring, locked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if not locked:
        keyring.set_keyring(NoKeyring())
    ring.locked = locked
    key = load_key(tmp_path, AuthSettings())
    assert load_key(tmp_path, IN_FILE) == key
    assert ("is kept in a file" in caplog.text) is locked


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2, "key": "AA=="}',
        b'{"version": 1, "key": "AA=="}',
        b'{"version": 1, "key": 3}',
    ],
    ids=["empty", "a list", "nothing", "newer", "short", "a number"],
)
def test_a_damaged_key_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / KEY_FILE
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(StoreError, match="is damaged"):
        load_key(tmp_path, IN_FILE)
    assert file.read_bytes() == content


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    load_key(tmp_path, IN_FILE)
    (tmp_path / KEY_FILE).chmod(0o644)
    with pytest.raises(StoreError, match="chmod 600"):
        load_key(tmp_path, IN_FILE)


def test_a_link_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    load_key(tmp_path / "elsewhere", IN_FILE)
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "elsewhere" / KEY_FILE)
    with pytest.raises(StoreError, match="symbolic link"):
        load_key(tmp_path, IN_FILE)
