"""Fetch the native TypeScript compiler that checks scripts, from the npm registry, by package name.

Used by the hatchling build hook (``scripts/hatch_build.py``) and by ``scripts/fetch_typescript``. Deno fetches the
package, as it does esbuild, so a mirror, a proxy or a company's CA that npm is set up for holds here too.

What it writes to ``broker/cellblock/typecheck/_typescript`` (generated, not kept in git): ``tsc``, the declarations of
the language itself (no DOM), the compiler's licence and notices, and ``BUILD.json``. Each file is checked against the
digests below, which stand for the pinned version, whatever a registry sends.

The compiler is optional: without a network, or on a platform that it does not come for, a build goes on, and
Cellblock says that scripts are not type-checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

OUT = Path("broker/cellblock/typecheck/_typescript")
VERSION = "7.0.2"
COMPILER, BUILD_INFO = "tsc", "BUILD.json"
COMPILER_SHA256 = {
    "linux-x64": "4f2de678286401759b3fb4475bafe35b8f32b4b3a07d92642bbf37eadc9b34a4",
    "linux-arm64": "f86e8070c267b12d6c119bf567cb82d8b245e9d93da1864bc7c603cea10a8b2f",
    "darwin-x64": "76e4987d060ef8207875a53a73619ce665ff16fb2800c0d57a452e21c829bd7b",
    "darwin-arm64": "a82f731365ad69d5c4c15f5e18fba4584bf3b7b839960172a76c3462b5114bf2",
}
"""Digest of ``lib/tsc`` in ``@typescript/typescript-<platform>`` at ``VERSION``."""
LIBRARY_SHA256 = "d01bd3b6af53cc80a6c6e7f647bcbfacf7e03f997dd2456f5263a222524b0842"
"""Digest over the names and bytes of ``library_files``, the same in every platform's package."""
FETCH_TIMEOUT_S = 180
"""10 MB; an install must not hang on a registry that does not answer."""

_MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64", "arm64": "arm64"}


class Unavailable(RuntimeError):
    """The compiler cannot be had here and now; the message says why."""


def platform_name(system: str = sys.platform, machine: str | None = None) -> str | None:
    """The platform's part of the package name, such as ``linux-x64``; None where there is no pinned package."""
    name = f"{system}-{_MACHINES.get((machine or platform.machine()).lower(), 'unknown')}"
    return name if name in COMPILER_SHA256 else None


def is_current(out: Path) -> bool:
    """Tell whether ``out`` holds the pinned version for this platform. Runs no process."""
    try:
        info = json.loads((out / BUILD_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return info == _info(platform_name()) and (out / COMPILER).is_file()


def fetch(deno: Path, environment: Mapping[str, str], out: Path) -> None:
    """Write the compiler to ``out`` (made if missing), ``BUILD.json`` last; nothing to do when it is current.

    Raises Unavailable when the platform has no package, the registry cannot be reached, or a digest differs.
    """
    if is_current(out):
        return
    name = platform_name()
    if name is None:
        raise Unavailable(f"no TypeScript compiler is pinned for {sys.platform} on {platform.machine()}")
    with tempfile.TemporaryDirectory(prefix="cellblock-typescript-") as work:
        # Deno trusts only its own certificates by default; npm behind a company's CA needs the system's too.
        usual = {"DENO_DIR": str(Path(work) / "deno_dir"), "DENO_TLS_CA_STORE": "mozilla,system"}
        env = {**usual, **environment, "DENO_NO_UPDATE_CHECK": "1", "DENO_NO_PROMPT": "1", "NO_COLOR": "1"}
        package = f"@typescript/typescript-{name}"
        command = ["cache", "--quiet", "--no-config", "--no-lock", f"npm:{package}@{VERSION}"]
        try:
            done = subprocess.run(
                [deno, *command],
                cwd=work,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=FETCH_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{package} could not be fetched: {error}") from error
        if done.returncode != 0:
            raise Unavailable(f"{package} could not be fetched: {done.stderr.strip()[-500:]}")
        found = next(Path(env["DENO_DIR"]).glob(f"npm/**/{package}/{VERSION}/lib/{COMPILER}"), None)
        if found is None:
            raise Unavailable(f"{package}@{VERSION} holds no lib/{COMPILER}")
        _check(found.parent, name)
        _place(found.parent, out, name)


def library_files(lib: Path) -> list[Path]:
    """The declarations of the language, in order of their names, without the DOM's.

    ``lib.d.ts`` is never read, but the compiler looks for it to know that it is complete.
    """
    files = [lib / "lib.d.ts", *lib.glob("lib.es*.d.ts"), *lib.glob("lib.decorators*.d.ts")]
    return sorted((path for path in files if ".full." not in path.name), key=lambda path: path.name)


def library_digest(lib: Path) -> str:
    """The SHA-256 (hex) over name and bytes of each of ``library_files``."""
    digest = hashlib.sha256()
    for path in library_files(lib):
        content = path.read_bytes()
        digest.update(f"{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _check(lib: Path, name: str) -> None:
    found = hashlib.sha256((lib / COMPILER).read_bytes()).hexdigest()
    if found != COMPILER_SHA256[name]:
        raise Unavailable(f"the registry's lib/{COMPILER} has the digest {found}, not the pinned one")
    found = library_digest(lib)
    if found != LIBRARY_SHA256:
        raise Unavailable(f"the registry's declarations have the digest {found}, not the pinned one")


def _place(lib: Path, out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / BUILD_INFO).unlink(missing_ok=True)
    notices = [path for path in (lib.parent / "LICENSE", lib.parent / "NOTICE.txt") if path.is_file()]
    for path in [lib / COMPILER, *library_files(lib), *notices]:
        # A running compiler keeps its old file: a new one is put in its place.
        part = out / f".{path.name}.part"
        shutil.copyfile(path, part)
        part.chmod(0o755 if path.name == COMPILER else 0o644)
        part.replace(out / path.name)
    (out / BUILD_INFO).write_text(json.dumps(_info(name), indent=1) + "\n", encoding="utf-8")


def _info(name: str | None) -> dict[str, object]:
    digests = {"compiler_sha256": COMPILER_SHA256.get(name or ""), "library_sha256": LIBRARY_SHA256}
    return {"typescript": VERSION, "platform": name, **digests}


def main() -> int:
    """Fetch for the checkout that this file is in; return the process's exit code."""
    root = Path(__file__).resolve().parent.parent
    deno = shutil.which("deno")
    if deno is None:
        print("fetch_typescript: there is no deno on PATH", file=sys.stderr)
        return 1
    try:
        fetch(Path(deno), os.environ, root / OUT)
    except Unavailable as error:
        print(f"fetch_typescript: {error}", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in (root / OUT).iterdir())
    print(f"TypeScript {VERSION} is in {OUT.as_posix()} ({size:,} bytes)")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
