"""Cellblock_typescript holds the native TypeScript compiler and the declarations of the language.

In: what the build has fetched (`fetch_typescript.py`, beside this package). Out: `FOLDER`, and where Cellblock runs
(`platforms`). It imports nothing of Cellblock; there, `typecheck.compiler` and `base.platforms` import it.
"""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "compiler"
"""Holds `tsc`, `lib.*.d.ts` and `BUILD.json`: put there by the build (`fetch_typescript.py`)."""
