"""Things of other programs in a folder that Cellblock uses: planted, remembered to the byte, and compared."""

import os
import socket
import stat
from pathlib import Path

from cellblock.base.store import LocalStore
from cellblock.tools.upstream.pins import PinStore

KINDS = (
    "file",
    "folder",
    "full folder",
    "link to a file",
    "link to a folder",
    "dangling link",
    "pipe",
    "socket",
)

ID = "A" * 32
PIN_FILE = Path(PinStore(LocalStore(Path())).shelf.where("plain")).name
DAEMON_LOCK = "daemon-127.0.0.1-8000.lock"
DATABASE_ENDINGS = ("", "-wal", "-shm", "-journal")

FOLDERS = (
    *(".", "run", "outputs", "logs", "pins", "auth", "tokens", "overlays", "exp1", "lost+found"),
    *("run/OWN", "run/OWN/deno-dir", "run/OWN/deno-dir/filled", "run/LEFT", "run/broker-12345678"),
    *("outputs/LEFT", "outputs/broker-12345678"),
)
"""OWN is the folder of a living broker, LEFT that of a killed one."""

NAMES = (
    *("notes.txt", "model.bin", "lost+found", "lock", "hosts.sock", ".cellblock", "broker-87654321", ID),
    *(
        "deno-dir",
        "filled",
        "shown",
        "dep_analysis_cache_v2",
        "npm",
        "run",
        "outputs",
        "logs",
        "pins",
        "auth",
        "tokens",
        "overlays",
    ),
    *("host.log", "upstream-plain.log", "daemon.log", DAEMON_LOCK, "cellblock-used.json"),
    *(
        f"{name}.sqlite3{ending}"
        for name in ("schemas", "journals", "outputs")
        for ending in DATABASE_ENDINGS
    ),
    *("journals.key", "audit.jsonl", "audit.jsonl.1", "token", PIN_FILE, "plain.json", "plain.lock"),
    "ci.json",
)

OURS = {
    *("logs/host.log", "logs/upstream-plain.log", "logs/daemon.log", DAEMON_LOCK, "cellblock-used.json"),
    *(
        f"{name}.sqlite3{ending}"
        for name in ("schemas", "journals", "outputs")
        for ending in DATABASE_ENDINGS
    ),
    *("journals.key", "audit.jsonl", "audit.jsonl.1", "token", f"pins/{PIN_FILE}", "auth/plain.json"),
    *("auth/plain.lock", "tokens/ci.json", ".cellblock"),
}
"""A plain file of that name is Cellblock's, whoever has made it."""

Seen = dict[str, tuple[object, ...]]


def is_ours(place: str, kind: str) -> bool:
    """Whether a thing cannot be told from one that Cellblock has made."""
    folder, _, name = place.rpartition("/")
    if kind == "file":
        is_output = folder.startswith("outputs/") and not folder.endswith("12345678") and name == ID
        return place in OURS or is_output or name == "dep_analysis_cache_v2"
    # An empty folder where Cellblock and Deno make theirs; and a socket.
    is_made = folder.startswith(("run/OWN", "run/LEFT")) and name in ("deno-dir", "filled", "shown", "npm")
    return (kind == "folder" and is_made) or (kind == "socket" and name == "hosts.sock")


class Foreign:
    """Plants things, and keeps what links lead to in a folder of its own.

    Args:
        outside: That folder; made.
    """

    def __init__(self, outside: Path) -> None:
        self._outside = outside
        (outside / "folder").mkdir(parents=True)
        (outside / "file").write_text("precious, outside")
        (outside / "folder" / "deep.txt").write_text("precious, in a folder outside")
        self.planted: list[Path] = [outside]

    def plant(self, path: Path, kind: str) -> bool:
        """Puts a thing there, unless there is one; folders on the way are foreign, too."""
        if os.path.lexists(path) or any(
            part.is_symlink() or (part.exists() and not part.is_dir()) for part in path.parents
        ):
            return False
        for part in reversed([part for part in path.parents if not part.exists()]):
            part.mkdir()
            self.planted.append(part)
        if kind == "file":
            path.write_bytes(os.urandom(100))
        elif kind in ("folder", "full folder"):
            path.mkdir()
            if kind == "full folder":
                (path / "model.bin").write_bytes(os.urandom(100))
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        else:
            path.symlink_to(
                self._outside / {"link to a file": "file", "link to a folder": "folder"}.get(kind, "nothing")
            )
        if kind in ("file", "folder", "full folder"):
            # Old things are removed first, where age is looked at.
            os.utime(path, (1, 1))
        self.planted.append(path)
        return True

    def seen(self) -> Seen:
        """What is there now of all that was planted."""
        found: Seen = {}
        for planted in self.planted:
            inside = sorted(planted.rglob("*")) if planted == self._outside else []
            if planted.is_dir() and (planted / "model.bin").exists():
                inside = [planted / "model.bin"]
            for path in [planted, *inside]:
                found[str(path)] = _look(path)
        return found


def _look(path: Path) -> tuple[object, ...]:
    try:
        facts = path.lstat()
    except FileNotFoundError:
        return ("gone",)
    what: object = None
    if stat.S_ISLNK(facts.st_mode):
        what = path.readlink()
    elif stat.S_ISREG(facts.st_mode):
        what = (path.read_bytes(), facts.st_mtime_ns, facts.st_nlink)
    return (oct(facts.st_mode), facts.st_uid, facts.st_ino, what)
