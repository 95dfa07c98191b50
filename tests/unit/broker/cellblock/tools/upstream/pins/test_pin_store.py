"""Pins: whole or not at all, and never believed when they are damaged; private, where they are files."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock.base.store import LocalStore
from cellblock.tools.upstream.definitions import canonical, digest, from_json
from cellblock.tools.upstream.pins.pin_store import PinError, PinStore
from cellblock.tools.upstream.pins.pins import Pins
from support.shared_rows import AnyStore


def pins(description: str = "d") -> Pins:
    definition = {"name": "a", "description": description, "inputSchema": {"type": "object", "x": "\ud800é"}}
    return Pins("sha256:o", {"a": from_json(definition)})


@pytest.fixture
def store(tmp_path: Path) -> PinStore:
    return PinStore(LocalStore(tmp_path / "state"))


@pytest.fixture
def either(store_of_broker: Callable[[], AnyStore]) -> PinStore:
    """Pins in files, and in rows that brokers share."""
    return PinStore(store_of_broker())


def test_what_was_written_is_read(either: PinStore) -> None:
    store = either
    assert store.load("files") is None and store.stamp("files") is None
    assert store.create("files", pins())
    assert store.load("files") == pins()
    first = store.stamp("files")
    store.replace("files", pins("other"))
    assert store.load("files") == pins("other")
    assert store.stamp("files") != first


def test_what_is_gone_is_kept_and_a_file_without_it_is_of_an_earlier_version(store: PinStore) -> None:
    gone = replace(pins(), gone=frozenset({"a"}))
    store.replace("files", gone)
    assert store.load("files") == gone
    data = json.loads(Path(store.shelf.where("files")).read_bytes())
    del data["gone"]
    Path(store.shelf.where("files")).write_text(json.dumps(data))
    assert store.load("files") == pins()


def test_another_version_than_the_one_that_was_read_is_not_replaced(either: PinStore) -> None:
    store = either
    store.create("files", pins())
    read = store.stamp("files")
    store.replace("files", pins("approved meanwhile"))
    assert not store.replace("files", pins("late"), only=read)
    assert store.load("files") == pins("approved meanwhile")
    store.replace("files", pins("in time"), only=store.stamp("files"))
    assert store.load("files") == pins("in time")


def test_first_pins_never_replace_others(either: PinStore) -> None:
    store = either
    assert store.create("files", pins())
    assert not store.create("files", pins("other"))
    assert store.load("files") == pins()


def test_files_are_private_and_nothing_is_left_beside_them(store: PinStore) -> None:
    store.create("files", pins())
    store.create("files", pins())
    store.replace("files", pins())
    path = Path(store.shelf.where("files"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_is_not_made_fuller(store: PinStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("files", pins())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for write in (store.replace, store.create):
            with pytest.raises(PinError, match="No space left"):
                write("files", pins("other"))
    assert list(Path(store.shelf.where("files")).parent.iterdir()) == [Path(store.shelf.where("files"))]
    assert store.load("files") == pins()


def test_every_server_has_a_file_of_its_own_in_the_directory(either: PinStore) -> None:
    store = either
    names = ["a/b", "a_b", "../../x", "A", "a", "é", "", "n" * 5_000, "\ud800"]
    paths = {Path(store.shelf.where(name)) for name in names}
    assert len(paths) == len(names)
    assert len({path.parent for path in paths}) == 1
    for name in names:
        store.create(name, pins())
        assert store.load(name) == pins()


def test_the_file_of_another_server_is_not_believed(store: PinStore) -> None:
    store.create("files", pins())
    Path(store.shelf.where("files")).rename(Path(store.shelf.where("other")))
    with pytest.raises(PinError):
        store.load("other")


def test_pins_behind_a_link_are_not_believed_and_not_written(store: PinStore, tmp_path: Path) -> None:
    """Whoever can put a link there would have other definitions trusted, or the first list once more."""
    store.create("files", pins())
    folder, planted = Path(store.shelf.where("files")).parent, PinStore(LocalStore(tmp_path / "planted"))
    planted.create("files", pins("swapped"))
    held = Path(planted.shelf.where("files")).read_bytes()
    folder.rename(tmp_path / "aside")
    for target in ("planted/pins", "empty", "nowhere"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        folder.symlink_to(tmp_path / target)
        for use in (
            store.load,
            lambda name: store.create(name, pins()),
            lambda name: store.replace(name, pins()),
        ):
            with pytest.raises(PinError, match="pins is a symbolic link"):
                use("files")
        folder.unlink()
    assert (
        Path(planted.shelf.where("files")).read_bytes() == held and list((tmp_path / "empty").iterdir()) == []
    )


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_pin_file_that_is_none_is_not_read_and_not_replaced(
    store: PinStore, tmp_path: Path, kind: str
) -> None:
    store.create("files", pins())
    path = Path(store.shelf.where("files"))
    path.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / ("elsewhere" if kind == "link" else "nowhere"))
    for use in (store.load, lambda name: store.replace(name, pins("other"))):
        with pytest.raises(PinError, match=r"is a (symbolic link|named pipe), not a file of Cellblock's"):
            use("files")
    assert not store.create("files", pins("other"))
    assert sorted(path.parent.iterdir()) == [path] and (path.is_symlink() or path.is_fifo())


def by_hand(definition: object, **fields: object) -> bytes:
    """A file whose digest is right, of the tool `a`."""
    entry = {"digest": digest(canonical(definition)), "definition": definition}
    data: dict[str, object] = {"format": 1, "server": "files", "origin": "o", "tools": {"a": entry}}
    return json.dumps({**data, **fields}).encode()


DAMAGE = [
    by_hand({}),
    by_hand({"description": "d"}),
    by_hand({"name": "b"}),
    by_hand({"name": ["a"]}),
    by_hand({"name": "a", "title": 5}),
    by_hand({"name": "a", "description": ["d"]}),
    by_hand({"name": "a", "annotations": "readOnly"}),
    by_hand({"name": "a"}, gone="a"),
    by_hand({"name": "a"}, gone=[["a"]]),
    by_hand({"name": "a"}, gone=[5, "a"]),
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'{"format": 2, "server": "files", "origin": "o", "tools": {}}',
    b'{"format": 1, "server": "files", "origin": 5, "tools": {}}',
    b'{"format": 1, "server": "files", "origin": "o", "tools": []}',
    b'{"format": 1, "server": "files", "origin": "o", "tools": {"a": 5}}',
    b'{"format": 1, "server": "files", "origin": "o", "tools": {"a": {"digest": "x", "definition": {}}}}',
    b"[" * 100_000,
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_that_names_it_and_the_way_out(store: PinStore, damage: bytes) -> None:
    store.create("files", pins())
    Path(store.shelf.where("files")).write_bytes(damage)
    with pytest.raises(PinError) as caught:
        store.load("files")
    assert str(Path(store.shelf.where("files"))) in caught.value.message
    assert "cellblock approve files --all" in caught.value.hint


def test_a_definition_that_was_edited_is_noticed(store: PinStore) -> None:
    store.create("files", pins())
    data = json.loads(Path(store.shelf.where("files")).read_bytes())
    data["tools"]["a"]["definition"]["description"] = "edited"
    Path(store.shelf.where("files")).write_text(json.dumps(data))
    with pytest.raises(PinError):
        store.load("files")


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pins").write_text("a file where the directory should be")
    with pytest.raises(PinError) as caught:
        PinStore(LocalStore(tmp_path)).create("files", pins())
    assert "pins is a file, not a folder" in caught.value.message
