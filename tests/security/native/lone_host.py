"""A process that has started one attacker as a host does, without the filter, so that a test can kill it.

Run as `python -m security.native.lone_host FOLDER jail|bubblewrap`; it prints the attacker's pid and its launcher's.
"""

import asyncio
import sys
from pathlib import Path

from cellblock_worker.confinement import confinement, syscall_lists
from cellblock_worker.launch.launching import Launcher
from security.native.harness import Native, Step, in_this_process, let_loose

STAY: tuple[Step, ...] = (("prctl", 1, 0, 0, 0, 0), "say stays", ("sleep", 600_000))
"""It takes back that it dies with its parent, and does not look at its input any more."""


async def main(folder: str, kind: str) -> None:
    syscall_lists.filter_program = lambda *_: None  # pyright: ignore[reportUnknownLambdaType]
    with in_this_process(Native(Path(folder))):
        launcher = Launcher(jail=confinement.jail() if kind == "jail" else None)
        worker, owner = await let_loose(*STAY, launcher=launcher)
        await owner.until("says")
        assert (launcher.jail is not None) == (kind == "jail")
        print(worker.pid, launcher.pid, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
