"""What is uploaded: the source archive needs no npm to become a wheel, the wheel is pure, its metadata lead somewhere.

The whole proof, with an installation, is `scripts/release_check`.
"""

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.parser import make_parser

ROOT = Path(__file__).resolve().parents[3]
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
        assert tag == f"v{PROJECT['version']}"
        assert (kind == "raw") == path.endswith((".png", ".svg"))
    assert f"mcp-name: {SERVER['name']}" in text, "the MCP registry looks for it to know whose package it is"


@pytest.mark.slow
def test_the_metadata_say_what_an_index_shows(metadata: bytes) -> None:
    shown = email.message_from_bytes(metadata)
    assert shown["License-Expression"] == "MIT"
    assert shown["Author"] == "The Cellblock authors"
    assert {url.partition(",")[0] for url in shown.get_all("Project-URL", [])} == set(PROJECT["urls"])
    assert all(url.startswith(REPOSITORY) for url in PROJECT["urls"].values())


def test_the_entry_of_the_mcp_registry_is_in_step() -> None:
    (package,) = SERVER["packages"]
    assert SERVER["version"] == package["version"] == PROJECT["version"]
    assert package["identifier"] == PROJECT["name"]
    assert SERVER["repository"]["url"] == REPOSITORY
    owner = REPOSITORY.removeprefix("https://github.com/").partition("/")[0]
    assert SERVER["name"] == f"io.github.{owner}/cellblock"
    assert len(SERVER["description"]) <= 100
    line: list[str] = []
    for argument in package["packageArguments"]:
        line += [argument[key] for key in ("name", "value") if key in argument]
        line += [argument["placeholder"]] if argument.get("isRequired") else []
    make_parser().parse_args(line)
