"""Hatchling build hook: puts the workers' JavaScript bundle, and the TypeScript compiler where it can be had, into
wheels and editable installs.

Configured by ``[tool.hatch.build.hooks.custom]`` in pyproject.toml. The work itself is in ``scripts/build_js.py`` and
``scripts/fetch_typescript.py``, loaded by path because a build has no ``scripts`` on ``sys.path``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
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
        build_js = _load(root, "build_js")
        build_js.build(root, root / build_js.OUT)
        typescript = _load(root, "fetch_typescript")
        try:
            typescript.fetch(build_js.find_deno().path, os.environ, root / typescript.OUT)
        except typescript.Unavailable as error:
            # Only type checking is off then; `cellblock doctor` says so.
            self.app.display_warning(f"Scripts will not be type-checked: {error}")
        if (root / typescript.OUT / typescript.COMPILER).is_file():
            # The compiler is a program of this platform, and so is a wheel that holds it.
            tag = re.sub(r"[^A-Za-z0-9]", "_", sysconfig.get_platform())
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"


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
