"""Key files: made for their owner alone, and refused when anybody else could have read or written them."""

import os
from pathlib import Path

import pytest

from cellblock_worker.wire.keys import (
    KeyFileError,
    KeyPair,
    line_of,
    make_key_file,
    make_pair,
    pair_of,
    parse_public_key,
    read_key_file,
    read_line,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.key"


@pytest.fixture
def made(file: Path) -> KeyPair:
    """The pair in that file."""
    return make_key_file(file)


def test_a_pair_is_the_same_when_it_is_read_again(file: Path, made: KeyPair, tmp_path: Path) -> None:
    assert read_key_file(file) == made
    assert len(made.secret) == len(made.public_bytes) == 32 and made.secret != made.public_bytes
    assert make_key_file(tmp_path / "b.key").public != made.public


def test_a_file_that_exists_is_left_alone(file: Path, made: KeyPair) -> None:
    with pytest.raises(KeyFileError, match="exists"):
        make_key_file(file)
    assert read_key_file(file) == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
@pytest.mark.usefixtures("made")
def test_a_file_that_is_open_to_others_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(KeyFileError, match=f"open to others .mode {mode:04o}.: chmod 600"):
        read_key_file(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.usefixtures("made")
def test_root_refuses_a_file_of_another_user(file: Path) -> None:
    os.chown(file, 65534, -1)
    with pytest.raises(KeyFileError, match="another user"):
        read_key_file(file)


def test_what_is_no_key_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe", 0o600)
    for odd in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(KeyFileError, match="no regular file"):
            read_key_file(odd)
    file = tmp_path / "file"
    file.touch(0o600)
    for text in (b"", b"\xff\xfe", b"curve-secret-key 00\n", b"x" * 10_000):
        file.write_bytes(text)
        with pytest.raises(KeyFileError, match="holds no key pair"):
            read_key_file(file)


def test_a_secret_is_in_no_text(made: KeyPair) -> None:
    assert made.secret.hex() not in repr(made) and str(made.secret) not in repr(made)


def test_a_pair_passes_a_pipe_and_any_32_bytes_are_one() -> None:
    pair = make_pair()
    assert read_line(line_of(pair)) == pair != make_pair() and line_of(pair).endswith(b"\n")
    assert pair_of(b"s" * 32) == pair_of(b"s" * 32) != pair_of(b"t" * 32)
    for line in (b"", b"\n", b"curve-secret-key 00\n"):
        with pytest.raises(KeyFileError, match="stdin"):
            read_line(line)


@pytest.mark.parametrize("text", ["", "0" * 63, "0" * 65, "g" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_public_key_is_64_hexadecimal_digits(text: str) -> None:
    with pytest.raises(KeyFileError, match="64 digits"):
        parse_public_key(text)
    assert parse_public_key("0a" * 32) == b"\x0a" * 32
