"""The library: approvals, files and recordings, under concurrent saves, full disks and kills, and hostile folders."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.settings.server import AuthSettings
from cellblock.base.store import LocalStore
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.saving import header_of
from cellblock.record.scripts.script_file import BadScript, Header, format_script
from cellblock.run.hook import RecordedCall
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from support.params import mostly

HEADER = Header(description="x")
AUTH = AuthSettings(keyring="off")


def library(tmp_path: Path) -> Library:
    (tmp_path / "state").mkdir(mode=0o700, exist_ok=True)
    return Library(LocalStore(tmp_path / "state"), AUTH, tmp_path / "scripts", tmp_path / "state")


def trial(text: str) -> Trial:
    recording = Recording(
        made_by="",
        deno="",
        started_at=0.0,
        request={"code": text},
        body=b"{}",
        conventions=True,
        limits={},
        message_bytes=1,
        catalog={},
        seed="0" * 64,
    )
    return Trial(recording, {"said": text}, {})


def test_a_version_runs_when_it_was_approved(tmp_path: Path) -> None:
    one = library(tmp_path)
    script = one.write("report", HEADER, "1", trial("1"), replace=False)
    assert one.approvals.get("report") is None
    first = one.approvals.approve(script)
    changed = one.write("report", HEADER, "2", trial("2"), replace=True)
    known = one.approvals.get("report")
    assert known is not None and known.script.text == script.text and known.by == first.by
    second = one.approvals.approve(changed)
    assert second.before == script.digest
    assert [*one.approvals.all()] == ["report"]
    one.approvals.remove("report")
    with pytest.raises(BadScript, match="No version"):
        one.approvals.remove("report")
    assert one.approvals.all() == {}


def test_a_damaged_approval_lets_nothing_in(tmp_path: Path) -> None:
    one = library(tmp_path)
    one.approvals.approve(format_script("report", HEADER, "1"))
    file = tmp_path / "state" / "scripts" / "report.json"
    whole = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    for at in range(0, len(whole), 3):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        known = one.approvals.get("report")
        assert known is None or known.script.text == format_script("report", HEADER, "1").text
    file.write_bytes(whole)
    file.chmod(0o644)
    assert one.approvals.get("report") is None
    (tmp_path / "state" / "scripts" / "other.json").write_bytes(whole)
    assert one.approvals.get("other") is None


def test_recordings_are_sealed_and_belong_to_their_version(tmp_path: Path) -> None:
    one = library(tmp_path)
    script = one.write("report", HEADER, "1", trial("hunter2"), replace=False)
    found = one.trial(script)
    assert found is not None and found.input == {"said": "hunter2"}
    names = [file for file in (tmp_path / "state").rglob("*") if file.is_file()]
    assert not any(b"hunter2" in file.read_bytes() for file in [*names, *(tmp_path / "scripts").iterdir()])
    sealed = tmp_path / "state" / "script-recordings" / f"{script.header.recording}.json"
    sealed.write_bytes(sealed.read_bytes()[:-1] + b"x")
    with pytest.raises(BadScript, match="changed"):
        one.trial(script)
    sealed.unlink()
    assert one.trial(script) is None


@pytest.mark.parametrize(
    ("answer", "grants"),
    [(b"no JSON", {}), (b"[" * 100_000, {}), (b"1", "everything"), (b"1", {"approve": 5})],
    ids=["text", "depth", "word", "number"],
)
def test_what_a_strangers_recording_holds_spoils_no_test(answer: bytes, grants: object) -> None:
    recording, tool = trial("1").recording, ToolEntry("t", "t")
    recording.request["grants"] = grants
    call = RecordedCall(id=1, kind="call", server="s", tool="t", ok=True, answer=answer)
    recording.calls.append(call)
    catalog = Catalog(servers={"s": ServerEntry("s", "s", "s", tools=(tool,))})
    with pytest.raises(BadScript, match="cannot be kept"):
        header_of(recording, "1", catalog, {})
    call.answer, recording.request["grants"] = b"1", {}
    assert [*header_of(recording, "1", catalog, {})[0].tools] == ["s.t"]


def test_clients_propose_no_more_than_a_person_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = library(tmp_path)
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING", 2)
    one.approvals.approve(one.write("a", HEADER, "1", trial("a"), replace=False))
    one.write("b", HEADER, "1", trial("b"), replace=False)
    one.check_room()
    one.write("a", HEADER, "2", trial("another version"), replace=True)
    with pytest.raises(BadScript, match="2 scripts wait"):
        one.check_room()
    # Those that a person has taken away leave nothing behind where there is no room.
    (tmp_path / "scripts" / "b.ts").unlink()
    one.check_room()
    recordings = tmp_path / "state" / "script-recordings"
    sizes = [file.stat().st_size for file in recordings.iterdir()]
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING_BYTES", sum(sizes) - 1)
    one.check_room()
    assert len([*recordings.iterdir()]) == len(sizes) - 1
    monkeypatch.setattr("cellblock.record.scripts.library.MAX_WAITING_BYTES", 1)
    with pytest.raises(BadScript, match="wait for the user"):
        one.check_room()


def test_hostile_folders_are_refused(tmp_path: Path) -> None:
    one = library(tmp_path)
    folder = tmp_path / "scripts"
    folder.mkdir()
    secret = tmp_path / "secret.ts"
    secret.write_text(format_script("report", HEADER, "secret").text)
    (folder / "report.ts").symlink_to(secret)
    os.mkfifo(folder / "pipe.ts")
    (folder / "folder.ts").mkdir()
    for name in ("report", "pipe", "folder"):
        with pytest.raises(BadScript):
            one.file(name)
    with pytest.raises(BadScript):
        one.write("report", HEADER, "1", trial("1"), replace=True)
    assert "secret" in secret.read_text()
    for name in ("../secret", "..", "/etc/passwd"):
        with pytest.raises(BadScript):
            one.file(name)
        with pytest.raises(BadScript):
            one.approvals.get(name)


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    bare = Library(LocalStore(tmp_path), AUTH, None, tmp_path)
    with pytest.raises(ConfigError, match="scripts"):
        bare.write("report", HEADER, "1", trial("1"), replace=False)


def test_concurrent_saves_lose_none_and_mix_none(tmp_path: Path) -> None:
    library(tmp_path)
    refused: list[str] = []

    def saves(number: int) -> None:
        one = library(tmp_path)
        for name in ("own_" + "abcdefgh"[number], "shared"):
            try:
                one.write(name, HEADER, f"code {number}", trial(f"code {number}"), replace=False)
            except BadScript as error:
                refused.append(str(error))

    threads = [threading.Thread(target=saves, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one = library(tmp_path)
    assert len(one.files()) == 9
    assert len(refused) == 7
    for name in one.files():
        script = one.file(name)
        found = one.trial(script)
        assert found is not None and found.recording.code == script.code


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = library(tmp_path)
    before = one.write("report", HEADER, "1", trial("1"), replace=False)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cellblock_worker.base.private_files.os.fsync", full)
    with pytest.raises(BadScript, match="No space left"):
        one.write("report", HEADER, "2", trial("2"), replace=True)
    with pytest.raises(BadScript, match="No space left"):
        one.approvals.approve(before)
    monkeypatch.undo()
    assert one.file("report").text == before.text
    found = one.trial(before)
    assert found is not None and found.recording.code == "1"
    assert one.files() == ["report"]


KILLED = """
import sys
from pathlib import Path
from test_library import HEADER, library, trial
one = library(Path(sys.argv[1]))
number = 0
while True:
    number += 1
    if number == 2:
        print("begun", flush=True)
    script = one.write("report", HEADER, f"code {number}", trial(f"code {number}"), replace=True)
    one.approvals.approve(script)
"""


@pytest.mark.parametrize("pause", mostly([0.05], [0.01, 0.02, 0.03, 0.05, 0.07, 0.11]))
def test_a_killed_process_loses_none_and_mixes_none(tmp_path: Path, pause: float) -> None:
    library(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    here = Path(__file__)
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here.parents[5]}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None and process.stdout.readline()
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
    one = library(tmp_path)
    script = one.file("report")
    found = one.trial(script)
    assert found is not None and found.recording.code == script.code
    known = one.approvals.get("report")
    assert known is not None and known.script.code.startswith("code ")
