"""Proves at a host's start that a process made like a worker is refused every way out.

`sandbox/selftest.ts` tries them; nothing of the sandbox's hygiene is in force there. A host whose worker gets out does
not serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import Any, Final, cast

from cellblock_worker import confinement

BOUND_SECONDS: Final = 20.0
"""The whole test; it takes about 0.2 s, and each attempt has 2 s of its own."""

MIN_ATTEMPTS: Final = 20
"""Fewer outcomes mean that the test itself did not run."""

ALLOWED: Final = "ALLOWED"


class SelfTestFailed(RuntimeError):
    """A way out is open, or the test could not be run; the text says which."""


async def run_selftest(max_old_space_mb: int, deno_dir: str | None = None) -> dict[str, str]:
    """Runs the test. Returns what was tried and how each was refused.

    Raises:
        SelfTestFailed: The host must not serve.
    """
    launch = confinement.launch(max_old_space_mb, confinement.SELFTEST_SCRIPT, deno_dir=deno_dir)
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            env=confinement.WORKER_ENVIRONMENT,
            cwd="/",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=launch.preexec,
            pass_fds=launch.fds,
        )
    except OSError as error:
        raise SelfTestFailed(f"the self-test cannot be started: {error}") from None
    finally:
        launch.close()
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            output, complaints = await process.communicate()
    except TimeoutError:
        raise SelfTestFailed(f"the self-test did not end within {BOUND_SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return judge(output, complaints)


def judge(output: bytes, complaints: bytes = b"") -> dict[str, str]:
    """The outcomes, if all attempts were made and every one was refused. Raises SelfTestFailed."""
    try:
        outcomes: object = json.loads(output)
    except ValueError:
        outcomes = None
    if not isinstance(outcomes, dict):
        said = complaints.decode("utf-8", "replace").strip()[:300]
        raise SelfTestFailed(f"the self-test gave no outcome: {said or 'it said nothing'}")
    found = {str(name): str(outcome) for name, outcome in cast("dict[Any, Any]", outcomes).items()}
    if len(found) < MIN_ATTEMPTS:
        raise SelfTestFailed(f"the self-test made only {len(found)} attempts")
    if open_ways := [name for name, outcome in found.items() if outcome == ALLOWED]:
        raise SelfTestFailed(f"a worker is not confined: {', '.join(open_ways)}")
    return found
