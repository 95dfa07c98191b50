"""The declarations that a script is checked against: the language's own come with the compiler, the sandbox's globals
from the sandbox's table, and the modules from the catalog.

What is not known is `any` here, so that it can raise no false alarm.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Final

from cellblock.catalog.model import Catalog, ServerEntry
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.outputs import OutputLookup, ToolOutput, stated_output
from cellblock.catalog.typescript import declare_server, declare_shared
from cellblock.catalog.typescript.modules import fixed_declarations
from cellblock.typecheck import compiler
from cellblock_worker.confinement import BUNDLE_DIR

MAX_DECLARATION_BYTES: Final = 4 * 1024 * 1024
"""Declarations of all the servers that one script imports; 213 tools of 16 servers take 0.2 MB."""

_KEPT: Final = 64
"""Servers whose text is kept; a server that reconnects gets a new entry, and a new text."""

_INTRINSIC: Final = frozenset({"globalThis", "undefined"})
_DECLARED: Final = re.compile(r"^declare (?:var|let|const|function|class|namespace) ([\w$]+)", re.MULTILINE)
_UNTYPED: Final = re.compile(r"type McpToolOutput = [^;]*;")


class TooLarge(ValueError):
    """The declarations are over `MAX_DECLARATION_BYTES`."""


@lru_cache(maxsize=4)
def environment(folder: Path = compiler.FOLDER) -> str:
    """What is there whatever a script imports: the sandbox's globals, and the fixed `@codemode` modules."""
    table: dict[str, str] = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))["allowed"]
    standard = set(_INTRINSIC)
    for library in folder.glob("lib.*.d.ts"):
        standard.update(_DECLARED.findall(library.read_text(encoding="utf-8")))
    written = _written_globals()
    globals_ = [written.get(name, f"declare var {name}: any;\n") for name in table if name not in standard]
    # An output that no one has declared may be anything: a script that knows better must not be refused.
    shared = _UNTYPED.sub("type McpToolOutput = any;", declare_shared())
    return "".join([*globals_, shared, fixed_declarations()])


def _written_globals() -> dict[str, str]:
    """From `globals.d.ts`: the declaration of each global that is more than `any`, by its name."""
    text = (Path(__file__).parent / "globals.d.ts").read_text(encoding="utf-8")
    parts = re.split(r"^//= (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


class Declarations:
    """The text for a set of imports; each server's part is made once per entry and state of knowledge, and kept.

    Args:
        outputs: What is known of the tools' outputs.
        revision: Another number whenever an answer of `outputs` about an entry would make other types.
    """

    def __init__(
        self, outputs: OutputLookup = stated_output, revision: Callable[[], int] = lambda: 0
    ) -> None:
        self._outputs = outputs
        self._revision = revision
        self._by_id: dict[int, tuple[ServerEntry, int, str]] = {}
        self._last: tuple[list[ServerEntry], int, str] | None = None

    def known(self, catalog: Catalog, specifiers: Iterable[str]) -> str | None:
        """What `of` would give, if that is the text of the last time."""
        servers = _imported(catalog, specifiers)
        if self._last is None or len(self._last[0]) != len(servers):
            return None
        same = all(held is server for held, server in zip(self._last[0], servers, strict=True))
        return self._last[2] if same and self._last[1] == self._revision() else None

    def of(self, catalog: Catalog, specifiers: Iterable[str]) -> str:
        """Everything that a script with these imports can see. Takes some ms for a server of a hundred tools.

        Raises:
            TooLarge: It is over `MAX_DECLARATION_BYTES`.
        """
        servers = _imported(catalog, specifiers)
        # Read first: what is learnt meanwhile makes the text one of an older state, never of a newer one.
        revision = self._revision()
        text = environment() + "".join(self._server(server, revision) for server in servers)
        if len(text.encode("utf-8", "replace")) > MAX_DECLARATION_BYTES:
            raise TooLarge(f"the declarations of its imports are over {MAX_DECLARATION_BYTES} bytes")
        self._last = (servers, revision, text)
        return text

    def observed(self, catalog: Catalog, specifiers: Iterable[str]) -> dict[str, ToolOutput]:
        """The functions whose output is known from observation alone, of the servers that a script imports."""
        found: dict[str, ToolOutput] = {}
        for server in _imported(catalog, specifiers):
            for tool in server.tools:
                output = self._outputs(server, tool)
                if output is not None and output.source == "observed":
                    found[tool.export_name] = output
        return found

    def _server(self, server: ServerEntry, revision: int) -> str:
        held = self._by_id.get(id(server))
        if held is not None and held[0] is server and held[1] == revision:
            return held[2]
        if len(self._by_id) >= _KEPT:
            self._by_id.clear()
        text = declare_server(server, shared=True, outputs=self._outputs)
        self._by_id[id(server)] = (server, revision, text)
        return text


def _imported(catalog: Catalog, specifiers: Iterable[str]) -> list[ServerEntry]:
    ids = {name[len(SERVERS_PREFIX) :] for name in specifiers if name.startswith(SERVERS_PREFIX)}
    return [server for server_id, server in catalog.servers.items() if server_id in ids]
