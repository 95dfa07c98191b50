"""Hatchling build hook: fetches the native TypeScript compiler that checks scripts, from the npm registry.

Configured in the pyproject.toml beside it. Deno fetches the package by its name, as it does esbuild for the workers'
JavaScript, so a mirror, a proxy or a company's CA that npm is set up for holds here too.

What it writes to ``cellblock_typescript/compiler`` (generated, not kept in git): ``tsc``, the declarations of the
language itself (no DOM), and ``BUILD.json``. Each file is checked against the digests below, which stand for the pinned
version, whatever a registry sends. The compiler's licence and notices are in ``licences``, which a new version renews.

``cellblock`` needs this package everywhere, and it comes as a source archive, too. So where no wheel fits, an
installer builds it, and the build says in one sentence why Cellblock does not run there.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OUT = Path("cellblock_typescript/compiler")
LICENCES = Path("licences")
VERSION = "7.0.2"
COMPILER, BUILD_INFO = "tsc", "BUILD.json"
FETCH_TIMEOUT_S = 180
"""10 MB; an install must not hang on a registry that does not answer."""


PLATFORMS_FILE = Path(__file__).parent / "cellblock_typescript" / "platforms.py"
"""Says where Cellblock runs. It is of the package that is built, which cannot be imported yet."""


class Platform(NamedTuple):
    """What is pinned for one platform: the digest of ``lib/tsc`` in npm's package, and the wheel's tag."""

    sha256: str
    tag: str


# The tags were read from the programs with these digests: on Linux they are static, without an interpreter or a
# dynamic section, so no glibc is too old; on macOS LC_BUILD_VERSION says 12.0.
PLATFORMS = {
    "linux-x64": Platform(
        "4f2de678286401759b3fb4475bafe35b8f32b4b3a07d92642bbf37eadc9b34a4", "manylinux_2_17_x86_64"
    ),
    "linux-arm64": Platform(
        "f86e8070c267b12d6c119bf567cb82d8b245e9d93da1864bc7c603cea10a8b2f", "manylinux_2_17_aarch64"
    ),
    "darwin-x64": Platform(
        "76e4987d060ef8207875a53a73619ce665ff16fb2800c0d57a452e21c829bd7b", "macosx_12_0_x86_64"
    ),
    "darwin-arm64": Platform(
        "a82f731365ad69d5c4c15f5e18fba4584bf3b7b839960172a76c3462b5114bf2", "macosx_12_0_arm64"
    ),
}
LIBRARY_SHA256 = "d01bd3b6af53cc80a6c6e7f647bcbfacf7e03f997dd2456f5263a222524b0842"
"""Digest over the names and bytes of ``library_files``, the same in every platform's package."""
OTHER_PLATFORM = "CELLBLOCK_TYPESCRIPT_PLATFORM"
"""Names the variable that says for which platform to build, where it is not this one's: a release builds all."""


class Unavailable(RuntimeError):
    """The compiler cannot be had here and now; the message says why."""


def is_current(out: Path, name: str) -> bool:
    """Tell whether ``out`` holds the pinned version for the platform ``name``. Runs no process."""
    try:
        info = json.loads((out / BUILD_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return info == _info(name) and (out / COMPILER).is_file()


def fetch(deno: Path, environment: Mapping[str, str], out: Path, licences: Path, name: str) -> None:
    """Write the compiler to ``out`` (made if missing), ``BUILD.json`` last; nothing to do when it is current.

    Raises Unavailable when the registry cannot be reached, or what it sends is not what is pinned.
    """
    if is_current(out, name):
        return
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
        _check(found.parent, licences, name)
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


def _check(lib: Path, licences: Path, name: str) -> None:
    found = hashlib.sha256((lib / COMPILER).read_bytes()).hexdigest()
    if found != PLATFORMS[name].sha256:
        raise Unavailable(f"the registry's lib/{COMPILER} has the digest {found}, not the pinned one")
    found = library_digest(lib)
    if found != LIBRARY_SHA256:
        raise Unavailable(f"the registry's declarations have the digest {found}, not the pinned one")
    for text in ("LICENSE", "NOTICE.txt"):
        ours = licences / f"TypeScript-{Path(text).stem}.txt"
        if (lib.parent / text).read_bytes() != ours.read_bytes():
            raise Unavailable(f"the registry's {text} is not the one in {licences.name}/{ours.name}")


def _place(lib: Path, out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / BUILD_INFO).unlink(missing_ok=True)
    for path in [lib / COMPILER, *library_files(lib)]:
        # A running compiler keeps its old file: a new one is put in its place.
        part = out / f".{path.name}.part"
        shutil.copyfile(path, part)
        part.chmod(0o755 if path.name == COMPILER else 0o644)
        part.replace(out / path.name)
    (out / BUILD_INFO).write_text(json.dumps(_info(name), indent=1) + "\n", encoding="utf-8")


def _info(name: str) -> dict[str, object]:
    digests = {"compiler_sha256": PLATFORMS[name].sha256, "library_sha256": LIBRARY_SHA256}
    return {"typescript": VERSION, "platform": name, **digests}


class CompilerHook(BuildHookInterface[Any]):
    """Runs before a wheel is put together; the source archive carries no compiler."""

    def dependencies(self) -> list[str]:
        """Name Deno, if there is something to fetch. Ends the build, in one sentence, where Cellblock cannot run."""
        if self.target_name != "wheel" or is_current(Path(self.root) / OUT, _wanted()):
            return []
        return ["deno>=2.9.8,<3"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the compiler. Ends the build with one sentence when it cannot be had."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        name = _wanted()
        # pip's isolated build has it on PATH; a build without isolation has it beside its Python.
        deno = shutil.which("deno") or str(Path(sys.executable).parent / "deno")
        try:
            fetch(Path(deno), os.environ, root / OUT, root / LICENCES, name)
        except Unavailable as error:
            raise SystemExit(f"cellblock-typescript: {error}") from None
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{PLATFORMS[name].tag}"


def _wanted() -> str:
    """Returns the platform to build for. Ends the build, in one sentence, where that is this one and does not do."""
    if other := os.environ.get(OTHER_PLATFORM):
        return other
    platforms = runpy.run_path(str(PLATFORMS_FILE))
    if sentence := platforms["refusal"]():
        raise SystemExit(sentence)
    return platforms["platform_name"]()
