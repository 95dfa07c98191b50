"""The token file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.frontend.http.token import ensure_token, read_token


def test_it_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new" / "token"
    token = ensure_token(file)
    assert len(token) == 43
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert ensure_token(file) == token
    assert ensure_token(tmp_path / "other") != token
    assert [path.name for path in file.parent.iterdir()] == ["token"]


def test_daemons_that_start_at_once_agree(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(ensure_token, [file] * 32))
    assert tokens == {read_token(file)}
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    ensure_token(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"0640.*chmod 600"):
        ensure_token(file)


@pytest.mark.parametrize("text", ["", "short", "x" * 31, "with a space in the middle of the token", "ü" * 40])
def test_a_file_without_a_good_token_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        ensure_token(file)
    assert str(file) in str(raised.value)
    assert not text or text not in str(raised.value)
