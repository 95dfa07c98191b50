"""What another user of the machine finds of a running broker: folders that only its owner can enter."""

import stat
from pathlib import Path

from cellblock import Broker


def modes_below(folder: Path) -> dict[str, int]:
    """The permission bits of a folder and of every folder in it, by path."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folders}


async def test_the_folders_of_sockets_and_logs_are_the_owners_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with Broker.from_config(None, state_dir=state) as broker:
        assert (await broker.run("globalThis.__codemode_result__ = 1")).result == 1
        modes = modes_below(state)
    assert {name.split("/")[0] for name in modes} >= {".", "logs"}
    assert modes == dict.fromkeys(modes, 0o700)
