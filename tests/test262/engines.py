"""Runs a case's program in a real worker (through a `Broker`) or in bare Deno, to outcomes that can be compared."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import deno

from cellblock import Broker, RunResponse
from test262.cases import HERE, Case

PASSED: Final = "passed"
NEVER_SETTLED: Final = "never settled"
UNHANDLED: Final = "Unhandled rejection: "

TIMEOUT_MS: Final = 5_000
"""For one case, in both engines; the slowest ones take a tenth of a second."""

BARE_FLAGS: Final = (
    "--no-prompt",
    "--no-remote",
    "--no-npm",
    "--no-config",
    "--no-lock",
    "--no-check",
    "--no-code-cache",
)

STAND_INS: Final = {
    "@codemode/errors": (
        "export class CodemodeError extends Error {} export class ToolCallError extends CodemodeError {}"
    ),
    "@codemode/discovery": (
        "export const specVersion = '0.0.0'; export async function listServers() { return []; }"
    ),
}
"""What bare Deno imports under the names of ours, so that `import(…)` can be compared where it succeeds."""

_POSITION: Final = re.compile(r"\s+at (?:data:|file:|script\.js|@codemode)\S*$")
_CAUSE: Final = re.compile(r" \(cause: .*\)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Compared:
    """How one case ended in each engine: `passed`, `never settled`, or `Name: message` of what it threw."""

    case: Case
    bare: str
    worker: str

    @property
    def same(self) -> bool:
        """Whether the two ended alike."""
        return self.bare == self.worker


async def compare(broker: Broker, cases: Sequence[Case], parallel: int = 2) -> list[Compared]:
    """Runs every case in a worker of its own and in a bare Deno process of its own.

    Args:
        broker: A running one, with nothing else to do.
        cases: None of them skipped.
        parallel: Cases under way at the same time.
    """
    slots = asyncio.Semaphore(parallel)
    with tempfile.TemporaryDirectory(prefix="test262-") as folder:
        import_map = Path(folder) / "import_map.json"
        import_map.write_text(
            json.dumps({"imports": {name: _data_url(text) for name, text in STAND_INS.items()}})
        )

        async def one(case: Case) -> Compared:
            async with slots:
                worker = in_worker(await broker.run(case.program, limits={"timeoutMs": TIMEOUT_MS}))
                bare = await in_bare_deno(case, import_map)
                return Compared(case, _judged(case, bare), _judged(case, worker))

        return list(await asyncio.gather(*map(one, cases)))


def in_worker(response: RunResponse) -> str:
    """The outcome of a run."""
    errors = [diagnostic for diagnostic in response.diagnostics if diagnostic.severity == "error"]
    if not errors:
        return PASSED
    first = errors[0]
    if first.code == "SANDBOX_LIMIT" and "timeoutMs" in first.message:
        return NEVER_SETTLED
    if first.code == "IMPORT_FAILURE" and "has no export" in first.message:
        # The engine's SyntaxError, told in the terms of the specification.
        return f"SyntaxError: {first.message}"
    return _plain(first.message)


async def in_bare_deno(case: Case, import_map: Path) -> str:
    """The outcome in `deno run` without permissions; with read access to the folder of a case's fixtures."""
    argv = [deno.find_deno_bin(), "run", *BARE_FLAGS, f"--import-map={import_map}"]
    if not case.fixtures:
        return await _bare_outcome([*argv, str(HERE / "harness" / "bare_driver.js")], case.program)
    with tempfile.TemporaryDirectory(prefix="test262-", dir=import_map.parent) as folder:
        beside = Path(folder)
        for file in case.path.parent.glob("*_FIXTURE*"):
            (beside / file.name).write_bytes(file.read_bytes())
        program = beside / case.path.name
        program.write_text(case.program, encoding="utf-8")
        argv += [f"--allow-read={beside}", str(HERE / "harness" / "bare_driver.js"), program.as_uri()]
        return await _bare_outcome(argv, "")


async def _bare_outcome(argv: list[str], program: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={"NO_COLOR": "1", "DENO_DIR": os.devnull + "/none"},
    )
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            out, err = await process.communicate(program.encode("utf-8", "replace"))
    except TimeoutError:
        return NEVER_SETTLED
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = out.decode("utf-8", "replace").splitlines()
    if not lines:
        shown = err.decode("utf-8", "replace")
        return NEVER_SETTLED if "never resolved" in shown else f"no outcome: {shown[:500]}"
    outcome: dict[str, Any] = json.loads(lines[-1])
    if outcome["kind"] == "pass":
        return PASSED
    name, message = outcome["name"], outcome["message"]
    if name == "TypeError" and message.startswith("SyntaxError: "):
        # Deno's own parser found it, before the engine's.
        name, message = None, message.splitlines()[0]
    label = f"{name}: " if name else ""
    prefix = UNHANDLED if outcome["kind"] == "rejection" else ""
    return _plain(f"{prefix}{label}{message}")


def _judged(case: Case, outcome: str) -> str:
    """`passed` for a case that had to fail with this class of error, and a reason for one that did not fail."""
    if case.throws is None:
        # It is told when the module has ended well.
        return PASSED if outcome.startswith(UNHANDLED) and not case.rejections else outcome
    if outcome == PASSED:
        return f"did not throw {case.throws}"
    return PASSED if outcome.removeprefix(UNHANDLED).startswith(f"{case.throws}: ") else outcome


def _plain(text: str) -> str:
    """Without what only one of the two adds: positions in the text, and the first cause."""
    return _POSITION.sub("", _CAUSE.sub("", text))


def _data_url(text: str) -> str:
    return f"data:text/javascript,{text.replace(' ', '%20')}"
