"""Lines on their way to private, bounded files."""

import os
import stat
import threading
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.observe import files
from cellblock.observe.files import LineWriter, PrivateFile


def lines_of(folder: Path, name: str = "log") -> list[str]:
    """All lines, the oldest file first."""
    found = sorted(folder.glob(f"{name}*"), key=lambda file: file.name, reverse=True)
    return [line for file in found for line in file.read_text().splitlines()]


def test_lines_come_in_order_and_the_files_stay_small_and_private(tmp_path: Path) -> None:
    writer = LineWriter(PrivateFile(tmp_path / "log", max_bytes=4096, keep=2), "log", max_batch_bytes=512)
    for number in range(2000):
        writer.put(lambda number=number: f"line {number}")
    writer.close()
    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == ["log", "log.1", "log.2"]
    for file in kept:
        assert file.stat().st_size <= 4096
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = lines_of(tmp_path)
    assert said == [f"line {number}" for number in range(2000 - len(said), 2000)]
    assert len(said) > 500


def test_it_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("old\n")
    (tmp_path / "log").chmod(0o644)
    writer = LineWriter(PrivateFile(tmp_path / "log", max_bytes=4096, keep=1), "log")
    writer.put(lambda: "new")
    writer.close()
    assert lines_of(tmp_path) == ["old", "new"]
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_it_follows_when_another_one_puts_the_file_aside(tmp_path: Path) -> None:
    one, two = (PrivateFile(tmp_path / "log", max_bytes=4096, keep=3) for _ in range(2))
    for number in range(300):
        (one if number % 3 else two).write(b"%029d\n" % number)
    one.close()
    two.close()
    assert lines_of(tmp_path) == [f"{number:029}" for number in range(300)]
    assert all(file.stat().st_size <= 4096 for file in tmp_path.iterdir())


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigError, match=r"log is a symbolic link.*Move it away"):
        PrivateFile(tmp_path / "log", max_bytes=4096, keep=1)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    class Full:
        def write(self, data: bytes) -> None:
            descriptor = os.open("/dev/full", os.O_WRONLY)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)

        def close(self) -> None:
            pass

    writer = LineWriter(Full(), "the log", max_batch_bytes=8)
    for _ in range(50):
        writer.put(lambda: "a line")
    writer.close()
    assert capfd.readouterr().err == "cellblock: the log cannot be written: No space left on device\n"


def test_a_hung_disk_costs_lines_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "QUEUE_LINES", 10)
    go_on, taken = threading.Event(), threading.Event()
    written: list[bytes] = []

    class Hung:
        def write(self, data: bytes) -> None:
            taken.set()
            assert go_on.wait(20)
            written.append(data)

        def close(self) -> None:
            pass

    writer = LineWriter(Hung(), "the log")
    writer.put(lambda: "first")
    assert taken.wait(20)
    for _ in range(100):
        writer.put(lambda: "more")
    assert writer.dropped == 90
    go_on.set()
    writer.close()
    assert b"".join(written) == b"first\n" + 10 * b"more\n"


def test_a_line_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    def broken() -> str:
        raise ValueError("secret text")

    writer = LineWriter(PrivateFile(tmp_path / "log", max_bytes=4096, keep=1), "log")
    writer.put(broken)
    writer.put(lambda: "\ud800 lone")
    writer.close()
    assert lines_of(tmp_path) == ["a line could not be made: ValueError", "? lone"]
