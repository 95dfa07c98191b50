"""Fuzzes the contexts of processes that are reused: hooks on all that a script has, and what comes by at them."""

import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cellblock_worker.confinement import confinement
from support.worker_owner import ContextWorker, module

HOOK: Final = "globalThis.__cellblock_boot__"

MODULES: Final = {
    "@codemode/errors": module(f"export const {{ CodemodeError, ToolCallError }} = {HOOK}.errors;"),
    "@codemode/servers/s": module(f"export const call = {HOOK}.server('s').tool('call', 'call', 1);"),
    "#load": module(f"export const {{ importable, load }} = {HOOK};"),
}

HEAD: Final = f'''import {{ importable, load }} from "{MODULES["#load"]}";
const $load = (name) => load(importable(name));
'''

RUN_SECONDS: Final = 30.0
"""Bounds a run: hooks may make a script loop for good."""

LOOK_EVERY: Final = 4
"""Sets after how many scripts the next one looks at all that it finds."""

HERE: Final = Path(__file__).parent
HOOKS: Final = (HERE / "hooks.js").read_text(encoding="utf-8")
WORLD: Final = (HERE / "world.js").read_text(encoding="utf-8")
MARKS: Final = HERE.parent / "security" / "mark_realm.js"


@contextmanager
def marked_worker(seconds: float) -> Generator[ContextWorker]:
    """A process whose own realm has a mark on all that others inherit from; `seconds` as of `ContextWorker`."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "bundle"
        shutil.copytree(confinement.BUNDLE_DIR, bundle)
        script = bundle / confinement.CONTEXTS_SCRIPT
        script.write_text(
            MARKS.read_text(encoding="utf-8") + script.read_text(encoding="utf-8"), encoding="utf-8"
        )
        with ContextWorker(bundle, seconds) as made:
            yield made


def fuzz_contexts(rounds: int, seed: int, *, seconds: float = 0.0) -> int:
    """Runs so many scripts, each with hooks on another part of what it has, and at times one that looks at all; again
    with other seeds until the time is over. Returns how many ran.

    Raises:
        AssertionError: An object of the realm around came by, or the next run found something else than the first.
    """
    ends = time.monotonic() + seconds
    ran = 0
    with marked_worker(RUN_SECONDS) as worker:
        world = worker.run(WORLD).value
        while ran < rounds or time.monotonic() < ends:
            number = ran % rounds
            terms = f"const [ROUND, ROUNDS, SEED] = [{number}, {rounds}, {seed + ran // rounds}];\n"
            done = worker.run(HEAD + terms + HOOKS, MODULES, answer={"a": 1})
            found = [line for line in done.logs if line.startswith("OUTER")]
            assert not found, f"{terms}: {found}"
            ran += 1
            if ran % LOOK_EVERY == 0:
                after = worker.run(WORLD)
                assert after.value == world, f"{terms}: {world} is now {after}"
    return ran
