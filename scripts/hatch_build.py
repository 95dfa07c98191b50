"""Hatchling build hook: builds the workers' JavaScript bundle into wheels and editable installs.

Configured by ``[tool.hatch.build.hooks.custom]`` in pyproject.toml. The work itself is in
``scripts/build_js.py``, loaded by path because a build has no ``scripts`` on ``sys.path``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class BundleHook(BuildHookInterface[Any]):
    """Runs before a wheel (standard or editable) is put together; an sdist carries only the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the bundle, even over a current one, which may be another Deno's.

        ``version`` is hatchling's kind of wheel, "standard" or "editable"; both get the same bundle.
        Raises build_js.BuildError when Deno is missing or fails, which ends the build with its message.
        """
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        build_js = _load_build_js(root)
        build_js.build(root, root / build_js.OUT)


def _load_build_js(root: Path) -> ModuleType:
    path = root / "scripts" / "build_js.py"
    spec = importlib.util.spec_from_file_location("cellblock_build_js", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path}")
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up in sys.modules while the class is being made
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
