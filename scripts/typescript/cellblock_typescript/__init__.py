"""The native TypeScript compiler and the declarations of the language, for Cellblock's type checker."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "compiler"
"""Holds `tsc`, `lib.*.d.ts` and `BUILD.json`: put there by the build (`fetch_typescript.py`)."""
