"""Hatchling hooks: the workers' JavaScript bundle comes into all that is built, README into the metadata.

Configured in pyproject.toml. The work itself is in ``scripts/build_js.py`` and ``scripts/links.py``, loaded by path
because a build has no ``scripts`` on ``sys.path``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


class BundleHook(BuildHookInterface[Any]):
    """Runs before an archive is put together. A source archive has the bundle: building from it needs no npm."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle unless it is current; in an editable install always: the current one may be another Deno's.

        ``version`` is hatchling's kind of wheel, "standard" or "editable".
        Raises build_js.BuildError when Deno is missing or fails, which ends the build with its message.
        """
        root = Path(self.root)
        build_js = _load(root, "build_js")
        if version == "editable" or not build_js.is_current(root, root / build_js.OUT):
            build_js.build(root, root / build_js.OUT)


class ReadmeHook(MetadataHookInterface):
    """Makes README the long description: links and pictures are those of the version's tag in the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, with the name in the MCP registry, which looks for it there to know whose package it is."""
        root = Path(self.root)
        text = _load(root, "links").absolute(
            (root / "README.md").read_text(encoding="utf-8"),
            *(root, Path(), metadata["urls"]["Repository"], f"v{metadata['version']}"),
        )
        name = json.loads((root / "scripts/server.json").read_text(encoding="utf-8"))["name"]
        text += f"\n<!-- mcp-name: {name} -->\n"
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _load(root: Path, name: str) -> ModuleType:
    path = root / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"cellblock_{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up in sys.modules while the class is being made
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
