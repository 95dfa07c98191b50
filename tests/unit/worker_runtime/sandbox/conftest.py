"""Fixtures: agent code in a fresh Deno worker, under the real flags, after `applyGlobals`."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deno
import pytest

SANDBOX = Path(__file__).parents[4] / "worker_runtime" / "sandbox"
FLAGS = (
    "--no-prompt",
    "--no-npm",
    "--no-remote",
    "--cached-only",
    "--no-config",
    "--no-lock",
    "--no-code-cache",
    "--v8-flags=--disallow-code-generation-from-strings",
)

# What boot does around the agent: keeps stdout, hears of uncaught errors, then applies the globals. The
# agent's module is imported as a data: URL; it speaks through SEND, which is no part of the product.
BOOT = """
import {{ ALLOWED_GLOBALS, applyGlobals, DEVIATIONS, makeDispatchEvent }} from "{sandbox}/globals/globals.ts";
import {{ denoCore }} from "{sandbox}/deno_core.ts";
const encoder = new TextEncoder();
const write = Deno.stdout.writeSync.bind(Deno.stdout);
const send = (kind: string, value: unknown) =>
  write(encoder.encode(JSON.stringify([kind, value]) + "\\n"));
const describe = (error: any) => `${{error?.name}}: ${{error?.message}}`;
const reports = {{
  fail: (_kind: string, error: unknown) => send("uncaught", ["error", describe(error)]),
  rejected: (_promise: unknown, reason: unknown) => send("uncaught", ["unhandledrejection", describe(reason)]),
  handled: () => send("handled", null),
}};
{before}
const now = performance.now.bind(performance);
const start = now();
const {{ createTimer: create, cancelTimer }} = denoCore();
const createTimer = (run: () => void, ms: number) => create(run, ms, undefined, false, true);
applyGlobals({{ createTimer, cancelTimer }}, makeDispatchEvent(reports));
const took = now() - start;
const world = globalThis as any;
const names = Reflect.ownKeys(world).map(String);
world.SEND = (value: unknown) => send("sent", value);
send("applied", {{ took, names, allowed: ALLOWED_GLOBALS, deviations: DEVIATIONS }});
{after}
try {{
  await import("data:application/typescript;base64," + world.btoa({agent}));
}} catch (error) {{
  send("threw", describe(error));
}}
"""


Events = list[tuple[str, Any]]


@pytest.fixture
def run_agent(tmp_path: Path) -> Callable[..., Events]:
    """Runs agent code; returns what was sent, in order, as (kind, value)."""

    def run(agent: str, before: str = "", after: str = "") -> Events:
        entry = tmp_path / "boot.ts"
        entry.write_text(
            BOOT.format(sandbox=SANDBOX.as_uri(), before=before, after=after, agent=json.dumps(agent))
        )
        done = subprocess.run(
            [deno.find_deno_bin(), "run", *FLAGS, str(entry)],
            env={"NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(line)) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def sent(run_agent: Callable[..., Events]) -> Callable[[str], list[Any]]:
    """Runs agent code; returns the values it sent, and fails when it threw."""

    def run(agent: str) -> list[Any]:
        events = run_agent(agent)
        assert [value for kind, value in events if kind == "threw"] == []
        return [value for kind, value in events if kind == "sent"]

    return run
