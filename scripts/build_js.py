"""Build the JavaScript that every worker process boots from, with Deno alone.

The one place that knows how the TypeScript under ``worker_runtime/sandbox`` and ``js_stdlib`` becomes
``worker_runtime/cellblock_worker/_bundle``. Used by the hatchling build hook (``scripts/hatch_build.py``),
by ``scripts/build_js`` and, when a source has changed, by ``scripts/_env.sh``.

What it writes (all generated, none kept in git):

* ``boot.js``: ``sandbox/boot.ts`` and all it imports, as a text that V8 alone reads (see `LOADER`), with
  ``sandbox/journal/journal.ts`` and all it imports as another text, which it evaluates when it has to;
* ``contexts.js``: ``sandbox/contexts.ts`` likewise, with ``sandbox/context/inner.ts`` as a third one;
* ``selftest.js``: ``sandbox/selftest.ts``, which a worker host runs once at its start;
* ``node_blocked.json``: an import map that sends every builtin Node module of this very Deno to a scheme that
  cannot be loaded (specification section 3.5: no Node-specific API in the sandbox);
* ``globals.json``: the tables of the sandbox's globals and of its deviations, for the agent's manual;
* ``BUILD.json``: the Deno version, and a SHA-256 over everything the build read.

Only the standard library and the ``deno`` package are needed, so that it also runs in pip's isolated build.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ENTRY = Path("worker_runtime/sandbox/boot.ts")
SOURCE_DIRS = (Path("worker_runtime/sandbox"), Path("js_stdlib"))
OUT = Path("worker_runtime/cellblock_worker/_bundle")
SELFTEST = Path("worker_runtime/sandbox/selftest.ts")
CONTEXTS = Path("worker_runtime/sandbox/contexts.ts")
INNER = Path("worker_runtime/sandbox/context/inner.ts")
JOURNAL = Path("worker_runtime/sandbox/journal/journal.ts")
BUNDLE, CONTEXTS_BUNDLE, SELFTEST_BUNDLE = "boot.js", "contexts.js", "selftest.js"
BUNDLES = (BUNDLE, CONTEXTS_BUNDLE, SELFTEST_BUNDLE)
BLOCKED, GLOBALS, BUILD_INFO = "node_blocked.json", "globals.json", "BUILD.json"
GLOBALS_TABLE = Path("worker_runtime/sandbox/globals/globals_table.ts")
BLOCKED_SCHEME = "cellblock-blocked:"
# Only the bundle itself: what it imports for others has a `data:` URL, which is in no scope.
ALLOWED = {f"./{CONTEXTS_BUNDLE}": {"node:vm": "node:vm"}}
# The range of `build-system.requires` in pyproject.toml: an older system-wide deno must not be picked up.
DENO_MIN, DENO_BELOW = (2, 9, 8), (3, 0, 0)
DENO_TIMEOUT_S = 300
# Not `--keep-names`: its calls take a fiftieth of a worker's boot. What scripts see names itself.
BUNDLE_FLAGS = ("--platform", "deno", "--minify")
LOADER = """\
{imports}const [start, failed] = Deno[Deno.internal].core.evalContext({text}, import.meta.url);
if (failed) throw failed.thrown;
start({values});
"""
"""Is the module that a worker boots from. Deno parses every module before V8 does, to find its imports: of the whole
sandbox that took a fifth of a worker's boot. Into a text it does not look, and V8 compiles it as a script."""
LIST_BUILTINS = 'import { builtinModules } from "node:module"; console.log(JSON.stringify(builtinModules));'
LIST_GLOBALS = """
const table = await import({url});
console.log(JSON.stringify({{ allowed: {{ ...table.ALLOWED_GLOBALS }}, deviations: {{ ...table.DEVIATIONS }} }}));
"""


class BuildError(RuntimeError):
    """The bundle could not be built; the message says what to do."""


@dataclass(frozen=True)
class Deno:
    """A Deno executable in the supported range."""

    path: Path
    version: str


def find_deno() -> Deno:
    """Return the first supported Deno: on PATH, then the ``deno`` package's, then beside this Python.

    PATH comes first because pip's isolated build puts the binary there, where ``deno.find_deno_bin()`` does
    not look. Raises BuildError when there is none.
    """
    seen: list[str] = []
    for path in _deno_candidates():
        version = _deno_version(path)
        seen.append(f"{path} ({version or 'does not run'})")
        if version and DENO_MIN <= _version_tuple(version) < DENO_BELOW:
            return Deno(path, version)
    wanted = f">={'.'.join(map(str, DENO_MIN))},<{DENO_BELOW[0]}"
    looked_at = ", ".join(seen) or "nothing"
    raise BuildError(f"no Deno {wanted} found; `pip install 'deno{wanted}'`. Looked at: {looked_at}")


def _deno_candidates() -> Iterator[Path]:
    on_path = shutil.which("deno")
    if on_path:
        yield Path(on_path)
    with contextlib.suppress(ImportError, FileNotFoundError):
        yield Path(importlib.import_module("deno").find_deno_bin())
    beside = Path(sys.executable).parent / "deno"
    if beside.exists():
        yield beside


def _deno_version(path: Path) -> str | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"deno (\d+\.\d+\.\d+)", done.stdout)
    return found.group(1) if found else None


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def inputs_digest(root: Path) -> str:
    """Return the SHA-256 (hex) over path and bytes of every file that the build reads, this one included."""
    digest = hashlib.sha256()
    sources = [path for folder in SOURCE_DIRS for path in (root / folder).rglob("*.ts")]
    for path in [Path(__file__).resolve(), *sorted(sources)]:
        name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def is_current(root: Path, out: Path) -> bool:
    """Tell whether ``out`` was built from exactly the present inputs. Runs no process."""
    try:
        info = json.loads((out / BUILD_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    complete = all((out / name).is_file() for name in (*BUNDLES, BLOCKED, GLOBALS))
    return complete and info.get("inputs_sha256") == inputs_digest(root)


def build(root: Path, out: Path) -> None:
    """Write the six files to ``out`` (made if missing) from the checkout or unpacked sdist at ``root``.

    Files are replaced one by one, ``BUILD.json`` last, so that a reader never sees half a file and an
    interrupted build counts as not current. Raises BuildError with Deno's own output when a step fails.
    """
    root = root.resolve()
    entry = root / ENTRY
    if not entry.is_file():
        raise BuildError(f"{entry} is missing: not a Cellblock source tree?")
    digest = inputs_digest(root)
    deno = find_deno()
    out.mkdir(parents=True, exist_ok=True)
    # Beside the target: renaming stays on one file system, and neither HOME nor /tmp must be writable.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=out) as work_name:
        work = Path(work_name)
        env = _deno_env(work)
        alone = ("--quiet", "--no-config", "--no-lock")

        def bundled(source: Path, *flags: str) -> str:
            _run(deno, ["bundle", *alone, *flags, "-o", BUNDLE, str(root / source)], work, env)
            return (work / BUNDLE).read_text(encoding="utf-8")

        # A script, not a module: it is compiled once and evaluated in each context, and must say itself that it is
        # strict.
        inner = f'"use strict";{bundled(INNER, "--platform", "deno", "--format", "iife")}'
        journal = _function(bundled(JOURNAL, *BUNDLE_FLAGS), ["CELLBLOCK_REST"])
        given = {"CELLBLOCK_JOURNAL": ascii(journal)}
        contexts = _loaded(
            bundled(CONTEXTS, *BUNDLE_FLAGS),
            given | {"CELLBLOCK_VM": "vm", "CELLBLOCK_INNER": ascii(inner)},
            'import vm from "node:vm";\n',
        )
        (work / CONTEXTS_BUNDLE).write_text(contexts, encoding="utf-8")
        (work / SELFTEST_BUNDLE).write_text(bundled(SELFTEST, *BUNDLE_FLAGS), encoding="utf-8")
        (work / BUNDLE).write_text(_loaded(bundled(ENTRY, *BUNDLE_FLAGS), given), encoding="utf-8")
        listing = _run(deno, ["eval", *alone, LIST_BUILTINS], work, env)
        table_url = json.dumps((root / GLOBALS_TABLE).as_uri())
        tables = _run(deno, ["eval", *alone, LIST_GLOBALS.format(url=table_url)], work, env)
        info = {"deno": deno.version, "inputs_sha256": digest}
        blocked = blocked_imports(json.loads(listing))
        _write_json(work / BLOCKED, {"imports": blocked, "scopes": ALLOWED})
        _write_json(work / GLOBALS, json.loads(tables))
        _write_json(work / BUILD_INFO, info)
        for name in (*BUNDLES, BLOCKED, GLOBALS, BUILD_INFO):
            (work / name).replace(out / name)


def _loaded(bundle: str, given: dict[str, str], imports: str = "") -> str:
    """Return the module that runs a bundle without imports and exports, which finds each of some values by its name."""
    # In single quotes, of which a bundle has few: each escape takes Deno and V8 time. All is ASCII, as in JavaScript.
    return LOADER.format(
        imports=imports, text=ascii(_function(bundle, given)), values=", ".join(given.values())
    )


def _function(bundle: str, parameters: Iterable[str]) -> str:
    return f'(function({",".join(parameters)}){{"use strict";{bundle}}})'


def blocked_imports(builtin_modules: list[str]) -> dict[str, str]:
    """Return import-map entries for each module name, both bare and with the ``node:`` prefix."""
    names = sorted({name.removeprefix("node:") for name in builtin_modules})
    return {
        specifier: f"{BLOCKED_SCHEME}node:{name}" for name in names for specifier in (name, f"node:{name}")
    }


def _deno_env(work: Path) -> dict[str, str]:
    env = dict(os.environ)
    # `deno bundle` fetches esbuild from the npm registry into DENO_DIR once; keep nothing unless told where.
    env.setdefault("DENO_DIR", str(work / "deno_dir"))
    # Deno trusts only its own certificates by default; npm behind a company's CA needs the system's too.
    env.setdefault("DENO_TLS_CA_STORE", "mozilla,system")
    env.update(NO_COLOR="1", DENO_NO_UPDATE_CHECK="1", DENO_NO_PROMPT="1")
    return env


def _run(deno: Deno, args: list[str], cwd: Path, env: dict[str, str]) -> str:
    try:
        done = subprocess.run(
            [deno.path, *args],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=DENO_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"`deno {args[0]}` did not end within {DENO_TIMEOUT_S} s") from error
    if done.returncode != 0:
        message = f"`deno {args[0]}` failed with exit code {done.returncode}:\n{done.stderr.strip()}"
        if "esbuild" in done.stderr:
            message += "\nDeno fetches esbuild from the npm registry (or NPM_CONFIG_REGISTRY) once."
        raise BuildError(message)
    return done.stdout


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Build for the checkout that this file is in; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="scripts/build_js", description="Build the workers' JavaScript.")
    parser.add_argument("--if-stale", action="store_true", help="do nothing when no source has changed")
    arguments = parser.parse_args()
    root = Path(__file__).resolve().parent.parent
    out = root / OUT
    if arguments.if_stale and is_current(root, out):
        return 0
    try:
        build(root, out)
    except BuildError as error:
        print(f"build_js: {error}", file=sys.stderr)
        return 1
    size = (out / BUNDLE).stat().st_size
    print(f"built {OUT.as_posix()}/{BUNDLE} ({size:,} bytes)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
