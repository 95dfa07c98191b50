"""The fetch of the compiler: which package, what counts as current, and that it never takes another's bytes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def fetcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import fetch_typescript

    yield fetch_typescript
    sys.modules.pop("fetch_typescript")


@pytest.fixture
def registry(fetcher: ModuleType, tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A `deno` that has the package of this platform at once, and the environment to call it with."""
    name = fetcher.platform_name()
    if name is None or not fetcher.is_current(ROOT / fetcher.OUT):
        pytest.skip("the build has brought no compiler")
    package = f"npm/registry.test/@typescript/typescript-{name}/{fetcher.VERSION}/lib"
    shutil.copytree(ROOT / fetcher.OUT, tmp_path / "cache" / package)
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
        ("linux", "riscv64", None),
        ("win32", "AMD64", None),
    ],
)
def test_the_package_is_the_platforms(
    fetcher: ModuleType, system: str, machine: str, name: str | None
) -> None:
    assert fetcher.platform_name(system, machine) == name


def test_what_is_fetched_is_whole_and_then_current(
    fetcher: ModuleType, registry: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert not fetcher.is_current(out)
    fetcher.fetch(*registry, out)
    assert fetcher.is_current(out)
    assert os.access(out / "tsc", os.X_OK)
    assert fetcher.library_digest(out) == fetcher.LIBRARY_SHA256
    fetcher.fetch(Path("/nonexistent"), {}, out)  # Current: nothing is asked for.


@pytest.mark.parametrize("name", ["tsc", "lib.es5.d.ts"])
def test_other_bytes_than_the_pinned_ones_are_refused(
    fetcher: ModuleType, registry: tuple[Path, dict[str, str]], tmp_path: Path, name: str
) -> None:
    with next(tmp_path.glob(f"cache/npm/**/{name}")).open("ab") as file:
        file.write(b"\n")
    with pytest.raises(fetcher.Unavailable, match="not the pinned one"):
        fetcher.fetch(*registry, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_registry_that_cannot_be_reached_is_no_reason_to_fail_a_build(
    fetcher: ModuleType, tmp_path: Path
) -> None:
    deno = shutil.which("deno") or str(Path(sys.executable).parent / "deno")
    env = {"PATH": os.environ["PATH"], "NPM_CONFIG_REGISTRY": "http://127.0.0.1:9/", "HOME": str(tmp_path)}
    if fetcher.platform_name() is None:
        pytest.skip("no package is pinned for this platform")
    with pytest.raises(fetcher.Unavailable, match="could not be fetched"):
        fetcher.fetch(Path(deno), env, tmp_path / "out")


def test_the_hook_goes_on_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import hatch_build

    class Unavailable(RuntimeError):
        pass

    def refuse(*_arguments: object) -> None:
        raise Unavailable("no network")

    built: list[Path] = []
    modules = {
        "build_js": type(
            "M",
            (),
            {
                "OUT": Path("js"),
                "build": staticmethod(lambda root, out: built.append(out)),
                "find_deno": staticmethod(lambda: type("D", (), {"path": Path("deno")})),
            },
        ),
        "fetch_typescript": type(
            "M",
            (),
            {
                "OUT": Path("ts"),
                "Unavailable": Unavailable,
                "COMPILER": "tsc",
                "fetch": staticmethod(refuse),
            },
        ),
    }
    monkeypatch.setattr(hatch_build, "_load", lambda root, name: modules[name])
    hook = hatch_build.BundleHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")  # type: ignore[arg-type]
    data: dict[str, object] = {}
    hook.initialize("standard", data)
    assert built == [tmp_path / "js"]
    assert data == {}
    sys.modules.pop("hatch_build")
