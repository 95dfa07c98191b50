"""The package `cellblock-typescript`: which platforms there are, what counts as current, and whose bytes it takes."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cellblock_typescript import FOLDER

ROOT = Path(__file__).resolve().parents[3]
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
    package = f"npm/registry.test/@typescript/typescript-{fetcher.platform_name()}/{fetcher.VERSION}"
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
    assert fetcher.platform_name(system, machine, [GLIBC]) == name


@pytest.mark.parametrize(
    ("system", "machine", "suffix", "told"),
    [
        ("win32", "AMD64", ".cp311-win_amd64.pyd", "on Windows, install it inside WSL 2"),
        ("linux", "x86_64", MUSL, "Alpine and others with musl are not supported"),
        ("linux", "riscv64", ".cpython-311-riscv64-linux-gnu.so", "not on linux, riscv64"),
    ],
)
def test_where_cellblock_does_not_run_one_sentence_says_so(
    fetcher: ModuleType, system: str, machine: str, suffix: str, told: str
) -> None:
    with pytest.raises(fetcher.Unavailable, match=told) as refused:
        fetcher.platform_name(system, machine, [suffix, ".abi3.so"])
    assert "\n" not in str(refused.value)


def test_versions_are_in_step(fetcher: ModuleType) -> None:
    package = tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cellblock = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert package["version"] == fetcher.VERSION
    assert cellblock["dependencies"][0] == f"cellblock-typescript=={fetcher.VERSION}"


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
    out, name = tmp_path / "out", fetcher.platform_name()
    assert not fetcher.is_current(out, name)
    fetcher.fetch(*registry, out, LICENCES, name)
    assert fetcher.is_current(out, name)
    assert os.access(out / "tsc", os.X_OK)
    assert fetcher.library_digest(out) == fetcher.LIBRARY_SHA256
    fetcher.fetch(Path("/nonexistent"), {}, out, LICENCES, name)  # Current: nothing is asked for.


@pytest.mark.parametrize("name", ["tsc", "lib.es5.d.ts", "NOTICE.txt"])
def test_other_bytes_than_the_pinned_ones_are_refused(
    fetcher: ModuleType, registry: tuple[Path, dict[str, str]], tmp_path: Path, name: str
) -> None:
    with next(tmp_path.glob(f"cache/npm/**/{name}")).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(fetcher.Unavailable, match=r"not the (pinned )?one"):
        fetcher.fetch(*registry, tmp_path / "out", LICENCES, fetcher.platform_name())
    assert not (tmp_path / "out").exists()


def test_a_registry_that_cannot_be_reached_is_told(fetcher: ModuleType, tmp_path: Path) -> None:
    deno = shutil.which("deno") or str(Path(sys.executable).parent / "deno")
    env = {"PATH": os.environ["PATH"], "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/", "HOME": str(tmp_path)}
    with pytest.raises(fetcher.Unavailable, match="could not be fetched"):
        fetcher.fetch(Path(deno), env, tmp_path / "out", LICENCES, fetcher.platform_name())
