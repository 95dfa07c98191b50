"""What is uploaded: the source archive needs no npm to become a wheel, the wheel is pure, its metadata lead somewhere.

The whole proof, with an installation, is `scripts/release_check`. Of the package `cellblock-typescript`: which
platforms there are, what counts as current, and whose bytes it takes.
"""

import email
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cellblock_typescript import FOLDER, platforms
from packaging.requirements import Requirement

from cellblock.app.cli.parser import make_parser
from support.documents import ROOT
from support.params import mostly

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SERVER: dict[str, Any] = json.loads((ROOT / "scripts" / "server.json").read_text(encoding="utf-8"))
REPOSITORY = PROJECT["urls"]["Repository"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source archive where no npm can be reached and Deno has nothing."""
    work = tmp_path_factory.mktemp("distribution")
    env = {
        **os.environ,
        "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/",
        "DENO_DIR": str(work),
        "HOME": str(work),
    }

    def build(folder: Path, target: str) -> Path:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(work)]
        subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, timeout=100)
        return next(work.glob("*.tar.gz" if target == "sdist" else "*.whl"))

    with tarfile.open(build(ROOT, "sdist")) as archive:
        archive.extractall(work, filter="data")
    (folder,) = (path for path in work.iterdir() if path.is_dir() and path.name.startswith("cellblock-"))
    return build(folder, "wheel")


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Those that the wheel gets, made without it."""
    folder = tmp_path_factory.mktemp("metadata")
    make = (
        "import sys; from hatchling.build import prepare_metadata_for_build_wheel as make; make(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", make, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (file,) = folder.glob("*.dist-info/METADATA")
    return file.read_bytes()


@pytest.mark.thorough
@pytest.mark.slow
def test_the_source_archive_becomes_a_pure_wheel_with_the_bundle_of_the_checkout(
    wheel: Path, metadata: bytes
) -> None:
    assert wheel.name == f"cellblock-{PROJECT['version']}-py3-none-any.whl"
    bundle = ROOT / "worker_runtime" / "cellblock_worker" / "_bundle"
    with zipfile.ZipFile(wheel) as archive:
        for file in bundle.iterdir():
            assert archive.read(f"cellblock_worker/_bundle/{file.name}") == file.read_bytes()
        assert archive.read(f"cellblock-{PROJECT['version']}.dist-info/METADATA") == metadata
        # Type checkers read the annotations of packages with it alone.
        assert {"cellblock/py.typed", "cellblock_worker/py.typed"} <= set(archive.namelist())


@pytest.mark.slow
def test_the_long_description_links_to_files_of_the_version(metadata: bytes) -> None:
    text = metadata.decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)\s]+)", text)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    ours = [link.removeprefix(REPOSITORY) for link in links if link.startswith(REPOSITORY)]
    assert ours
    for link in ours:
        _, kind, tag, path = link.split("/", 3)
        assert (ROOT / path.partition("#")[0]).exists()
        assert (kind == "raw", tag) == (path.endswith((".png", ".svg")), f"v{PROJECT['version']}")
    assert f"mcp-name: {SERVER['name']}" in text, "the MCP registry looks for it to know whose package it is"


@pytest.mark.slow
def test_the_metadata_say_what_an_index_shows(metadata: bytes) -> None:
    shown = email.message_from_bytes(metadata)
    assert (shown["License-Expression"], shown["Author"]) == ("MIT", "The Cellblock authors")
    assert {url.partition(",")[0] for url in shown.get_all("Project-URL", [])} == set(PROJECT["urls"])
    assert all(url.startswith(REPOSITORY) for url in PROJECT["urls"].values())


def test_the_entry_of_the_mcp_registry_is_in_step() -> None:
    (package,) = SERVER["packages"]
    assert SERVER["version"] == package["version"] == PROJECT["version"]
    assert (package["identifier"], SERVER["repository"]["url"]) == (PROJECT["name"], REPOSITORY)
    owner = REPOSITORY.removeprefix("https://github.com/").partition("/")[0]
    assert SERVER["name"] == f"io.github.{owner}/cellblock"
    assert len(SERVER["description"]) <= 100
    line: list[str] = []
    for argument in package["packageArguments"]:
        line += [argument[key] for key in ("name", "value") if key in argument]
        line += [argument["placeholder"]] if argument.get("isRequired") else []
    make_parser().parse_args(line)


SOURCE = ROOT / "scripts" / "typescript"
LICENCES = SOURCE / "licences"
GLIBC, MUSL = ".cpython-311-x86_64-linux-gnu.so", ".cpython-311-x86_64-linux-musl.so"
ELF_INTERPRETER, ELF_DYNAMIC = 3, 2


@pytest.fixture
def fetcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(SOURCE))
    import fetch_typescript

    yield fetch_typescript
    sys.modules.pop("fetch_typescript")


@pytest.fixture
def registry(fetcher: ModuleType, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A `deno` that has the package of this platform at once, and the environment to call it with."""
    package = f"npm/registry.test/@typescript/typescript-{platforms.platform_name()}/{fetcher.VERSION}"
    shutil.copytree(FOLDER, tmp_path / "cache" / package / "lib")
    for name in ("LICENSE", "NOTICE.txt"):
        shutil.copy(LICENCES / f"TypeScript-{Path(name).stem}.txt", tmp_path / "cache" / package / name)
    deno = tmp_path / "deno"
    deno.write_text("#!/bin/sh\nexit 0\n")
    deno.chmod(0o755)
    return deno, {**os.environ, "DENO_DIR": str(tmp_path / "cache")}


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("linux", "x86_64", "linux-x64"),
        ("linux", "aarch64", "linux-arm64"),
        ("darwin", "arm64", "darwin-arm64"),
    ],
)
def test_the_package_is_the_platforms(fetcher: ModuleType, system: str, machine: str, name: str) -> None:
    assert platforms.platform_name(system, machine) == name
    assert platforms.refusal(system, machine, [GLIBC]) is None
    assert tuple(fetcher.PLATFORMS) == platforms.NAMES


@pytest.mark.parametrize(
    ("system", "machine", "suffix", "told"),
    [
        ("win32", "AMD64", ".cp311-win_amd64.pyd", "on Windows, install it inside WSL 2"),
        ("linux", "x86_64", MUSL, "Alpine and others with musl are not supported"),
        ("linux", "riscv64", ".cpython-311-riscv64-linux-gnu.so", "not on linux, riscv64"),
    ],
)
def test_where_cellblock_does_not_run_one_sentence_says_so(
    system: str, machine: str, suffix: str, told: str
) -> None:
    said = platforms.refusal(system, machine, [suffix, ".abi3.so"])
    assert said and told in said and "\n" not in said


PATCHED = {
    # What the build imports is what it is here: from Python 3.14 on, shutil would ask for Windows' own module.
    "Windows": ("import shutil, sys; sys.platform = 'win32'; ", "on Windows, install it inside WSL 2."),
    "Alpine": (
        "import importlib.machinery as m; m.EXTENSION_SUFFIXES.insert(0, '.cpython-311-x86_64-linux-musl.so'); ",
        "Alpine and others with musl are not supported; take an image such as python:3.13-slim.",
    ),
}
"""Maps systems to what makes a Python take this one for it, and to how the one sentence ends."""


def repack(name: str, folder: Path) -> None:
    """Makes a wheel of an installed package again."""
    found = distribution(name)
    tag = re.search(r"^Tag: (\S+)", found.read_text("WHEEL") or "", re.M)
    assert tag
    stem = f"{name.replace('-', '_')}-{found.version}-{tag[1]}"
    with zipfile.ZipFile(folder / f"{stem}.whl", "w") as wheel:
        for file in found.files or ():
            if not str(file).startswith("..") and "__pycache__" not in file.parts:
                wheel.write(str(found.locate_file(file)), str(file))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an index has for a platform that is not supported: Cellblock's wheel, which is for any, and the compiler's
    source archive."""
    folder = tmp_path_factory.mktemp("index")
    for project, kind in ((SOURCE, "sdist"), (ROOT, "wheel")):
        command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=120)
    # It is asked for before: the dependency that comes first by its name, and what a build needs.
    needed = [Requirement(text) for text in distribution("hatchling").requires or ()]
    needs = {one.name for one in needed if one.marker is None or one.marker.evaluate()}
    for name in {"argcomplete", "hatchling", *needs}:
        repack(name, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("system", mostly(list(PATCHED)[:1], list(PATCHED)))
def test_an_installer_shows_the_sentence_before_it_looks_for_anything_else(
    index: Path, tmp_path: Path, system: str
) -> None:
    """What pip starts to build the archive takes the machine for another one; pip itself does not."""
    patch, told = PATCHED[system]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv").glob("lib/python3.*/site-packages")
    # A line of a .pth file that begins with `import` is run at the start.
    is_build = "any('in_process' in word for word in __import__('sys').orig_argv)"
    (site / "other.pth").write_text(f"import builtins; {is_build} and exec({patch!r})\n")
    options = ["--no-index", "--no-cache-dir", "--find-links", str(index)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(python), "install", *options, "cellblock"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    told_lines = [line.strip() for line in said.splitlines() if line.rstrip().endswith(told)]
    assert len(told_lines) == 1 and "Cellblock " in told_lines[0], said
    # It is asked for first, and nothing else is looked for: nor is anything installed.
    assert not any(word in said for word in ("Traceback", "No matching distribution", "bubblewrap"))
    assert not list(site.glob("cellblock*"))


@pytest.mark.parametrize("system", PATCHED)
def test_a_first_run_says_it_too(system: str) -> None:
    patch, told = PATCHED[system]
    for program in ("from cellblock.app.cli.main import main", "import cellblock\ncellblock.Broker"):
        done = subprocess.run(
            [sys.executable, "-c", patch + program], capture_output=True, text=True, timeout=60
        )
        last = done.stderr.splitlines()[-1]
        assert done.returncode != 0 and last.endswith(told)
        assert last.startswith(("cellblock: Cellblock ", "ImportError: Cellblock "))
        assert len(done.stderr.splitlines()) == 1 or "Broker" in program


def test_versions_are_in_step(fetcher: ModuleType) -> None:
    package = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert package["version"] == fetcher.VERSION
    assert PROJECT["dependencies"][0] == f"cellblock-typescript=={fetcher.VERSION}"


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")
def test_a_wheel_for_any_glibc_holds_a_program_that_needs_none() -> None:
    with (FOLDER / "tsc").open("rb") as file:
        header = file.read(4096)
    (offset,) = struct.unpack_from("<Q", header, 32)
    size, count = struct.unpack_from("<HH", header, 54)
    kinds = {struct.unpack_from("<I", header, offset + number * size)[0] for number in range(count)}
    assert not kinds & {ELF_INTERPRETER, ELF_DYNAMIC}


def test_what_is_fetched_is_whole_and_then_current(
    fetcher: ModuleType, registry: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    out, name = tmp_path / "out", platforms.platform_name()
    assert not fetcher.is_current(out, name)
    fetcher.fetch(*registry, out, LICENCES, name)
    assert fetcher.is_current(out, name) and os.access(out / "tsc", os.X_OK)
    assert fetcher.library_digest(out) == fetcher.LIBRARY_SHA256
    fetcher.fetch(Path("/nonexistent"), {}, out, LICENCES, name)  # Current: nothing is asked for.


@pytest.mark.parametrize("name", ["tsc", "lib.es5.d.ts", "NOTICE.txt"])
def test_other_bytes_than_the_pinned_ones_are_refused(
    fetcher: ModuleType, registry: tuple[Path, dict[str, str]], tmp_path: Path, name: str
) -> None:
    with next(tmp_path.glob(f"cache/npm/**/{name}")).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(fetcher.Unavailable, match=r"not the (pinned )?one"):
        fetcher.fetch(*registry, tmp_path / "out", LICENCES, platforms.platform_name())
    assert not (tmp_path / "out").exists()


def test_a_registry_that_cannot_be_reached_is_told(fetcher: ModuleType, tmp_path: Path) -> None:
    deno = shutil.which("deno") or str(Path(sys.executable).parent / "deno")
    env = {"PATH": os.environ["PATH"], "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/", "HOME": str(tmp_path)}
    with pytest.raises(fetcher.Unavailable, match="could not be fetched"):
        fetcher.fetch(Path(deno), env, tmp_path / "out", LICENCES, platforms.platform_name())
