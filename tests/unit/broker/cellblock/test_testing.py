"""`cellblock.testing` writes recordings that their owner alone may read."""

import os
import stat
from pathlib import Path

import pytest

from cellblock.record.recording import MAX_BYTES, Recording, names_of
from cellblock.testing import read_recording, write_recording
from cellblock.tools.catalog.model import Catalog

SAMPLE = Recording(
    made_by="0.1.0",
    deno="2.9.8",
    started_at=1.5,
    request={"code": "1"},
    body=b'{"main": "1", "modules": {}, "refused": {}}',
    conventions=True,
    limits={"timeout_ms": 1},
    message_bytes=1,
    catalog=names_of(Catalog()),
    seed="ab" * 32,
    events="",
    calls=[],
    response={"logs": [], "result": None, "diagnostics": []},
    ended="finished",
)


@pytest.mark.parametrize("there", [False, True])
def test_a_recording_is_its_owners_alone(tmp_path: Path, there: bool) -> None:
    file = tmp_path / "run.cellrun"
    if there:
        file.write_text("old")
        file.chmod(0o644)
    write_recording(SAMPLE, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_recording(file) == SAMPLE


def test_a_file_is_read_within_bounds_and_no_pipe(tmp_path: Path) -> None:
    file = tmp_path / "run.cellrun"
    file.touch()
    os.truncate(file, MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("run.cellrun", "larger than"), ("pipe", "it is no file")):
        with pytest.raises(OSError, match=said):
            read_recording(tmp_path / name)


def test_a_recording_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "another").write_text("kept")
    file = tmp_path / "run.cellrun"
    file.symlink_to("another")
    with pytest.raises(OSError, match="symbolic link"):
        write_recording(SAMPLE, file)
    assert (tmp_path / "another").read_text() == "kept"
