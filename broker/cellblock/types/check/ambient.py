"""Declares what a script is checked against: the language's own comes with the compiler, the sandbox's globals
from the sandbox's table, and the modules from the catalog.

What is not known is `any` here, so that it can raise no false alarm. There are two readings of a server's declarations:
as they are, and closed, where an object has what is declared alone. The closed one is what tells a slip: most schemas
are open, and then a misspelt key or field is no type error at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cellblock.base.kept import Newest
from cellblock.tools.catalog.model import (
    SCRIPTS,
    Catalog,
    OutputLookup,
    OutputsOf,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_of,
)
from cellblock.tools.catalog.modules import SERVERS_PREFIX, server_of
from cellblock.types.check import compiler
from cellblock.types.typescript import declare_server, declare_shared
from cellblock.types.typescript.modules import fixed_declarations
from cellblock_worker.confinement.confinement import BUNDLE_DIR

MAX_DECLARATION_BYTES: Final = 4 * 1024 * 1024
"""Bounds the declarations of all the servers that one script imports; 213 tools of 16 servers take 0.2 MB."""

_KEPT: Final = 256
"""Bounds the servers whose text is kept, for each principal; a server that reconnects gets a new entry, and a new
text."""

_WORD: Final = re.compile(r"[\w$]+")

_INTRINSIC: Final = frozenset({"globalThis", "undefined"})
_DECLARED: Final = re.compile(r"^declare (?:var|let|const|function|class|namespace) ([\w$]+)", re.MULTILINE)
_UNTYPED: Final = re.compile(r"type McpToolOutput = [^;=]*;")
_OPEN_AT_END: Final = re.compile(r"; \[key: string\]: unknown(?= \})")
_OPEN_LINE: Final = re.compile(r"(?<=;\n) *\[key: string\]: unknown;\n")


Got = Mapping[tuple[str, str], ToolOutput]
"""Maps what a run has got from tools, by id of the server and name of the tool."""

NOTHING: Final[Got] = MappingProxyType({})


class TooLarge(ValueError):
    """Tells that declarations are over `MAX_DECLARATION_BYTES`."""


@lru_cache(maxsize=1)
def environment() -> str:
    """Declares what is there whatever a script imports: the sandbox's globals, and the fixed `@codemode`
    modules."""
    table: dict[str, str] = json.loads((BUNDLE_DIR / "globals.json").read_text(encoding="utf-8"))["allowed"]
    standard = set(_INTRINSIC)
    for library in compiler.FOLDER.glob("lib.*.d.ts"):
        standard.update(_DECLARED.findall(library.read_text(encoding="utf-8")))
    # The declaration of each global that is more than `any`, below its name.
    text = (Path(__file__).parent / "globals.d.ts").read_text(encoding="utf-8")
    parts = re.split(r"^//= (.+)\n", text, flags=re.MULTILINE)
    written = dict(zip(parts[1::2], parts[2::2], strict=True))
    globals_ = [written.get(name, f"declare var {name}: any;\n") for name in table if name not in standard]
    # An output that no one has declared may be anything: a script that knows better must not be refused.
    shared = _UNTYPED.sub("type McpToolOutput = any;", declare_shared(reading=False))
    return "".join([*globals_, shared, fixed_declarations()])


@lru_cache(maxsize=1)
def closed_environment() -> str:
    """Declares the same, and of a whole result only what is declared."""
    return _OPEN_LINE.sub("", environment())


class Declarations:
    """Makes the text for a script's imports; each server's part is kept until its entry, or what is known of
    it, changes.

    Only tools that a script names are declared in full, the others as `any`: making the types of 200 tools takes
    0.2 s, and a script uses a few. Once named, a tool stays declared, so that the text soon stays the same.

    Attributes:
        outputs: Gives what a principal knows of tools' outputs.
        revision: Gives another number whenever an answer of `outputs` about an entry would make other types.
    """

    def __init__(self, outputs: OutputsOf = stated_of, revision: Callable[[], int] = lambda: 0) -> None:
        self.outputs = outputs
        self.revision = revision
        self._by_id = Newest[tuple[str, str], _Part](_KEPT)

    def text(
        self,
        catalog: Catalog,
        specifiers: Iterable[str],
        code: str,
        *,
        closed: bool = False,
        got: Got = NOTHING,
        principal: str = "",
    ) -> str:
        """Gives everything that a script with these imports can see, with types for what it names.

        Takes about 1 ms for each tool that is named for the first time, or was learnt about since.

        Args:
            catalog: The run's snapshot.
            specifiers: What the script imports.
            code: The script.
            closed: Whether objects have only what is declared (`closed_view`).
            got: What a run has got from tools, where that is not what is known of them.
            principal: Whose script it is.

        Raises:
            TooLarge: It is over `MAX_DECLARATION_BYTES`.
        """
        servers, words = imported_servers(catalog, specifiers), _words(code)
        # Read first: what is learnt meanwhile makes the text one of an older state, never of a newer one.
        revision = self.revision()
        parts = [self._part(server, revision, words, principal, got) for server in servers]
        text = (closed_environment() if closed else environment()) + "".join(
            part.texts[closed] for part in parts
        )
        if len(text.encode("utf-8", "replace")) > MAX_DECLARATION_BYTES:
            raise TooLarge(f"the declarations of its imports are over {MAX_DECLARATION_BYTES} bytes")
        return text

    def named(
        self, catalog: Catalog, specifiers: Iterable[str], code: str
    ) -> list[tuple[ServerEntry, ToolEntry]]:
        """Gives the tools that a script with these imports names."""
        words = _words(code)
        servers = [(server, _named(server, words)) for server in imported_servers(catalog, specifiers)]
        return [
            (server, tool) for server, names in servers for tool in server.tools if tool.export_name in names
        ]

    def observed(self, catalog: Catalog, specifiers: Iterable[str], principal: str) -> dict[str, ToolOutput]:
        """Gives the functions whose output is known from observation alone, of the servers that a principal's script
        imports."""
        servers, outputs = imported_servers(catalog, specifiers), self.outputs(principal)
        found = ((tool, outputs(server, tool)) for server in servers for tool in server.tools)
        return {tool.export_name: output for tool, output in found if output and output.source == "observed"}

    def _part(
        self, server: ServerEntry, revision: int, words: frozenset[str], principal: str, got: Got
    ) -> _Part:
        key, known = (server.server_id, principal), self.outputs(principal)
        held, named = self._by_id.get(key), _named(server, words)
        if got:
            return _declared(server, revision, named, known, got)
        if held is not None:
            if held.server is server and held.revision == revision and named <= held.named:
                return held
            named |= held.named
        made = self._by_id[key] = _declared(server, revision, named, known, NOTHING)
        return made


@dataclass(frozen=True, slots=True)
class _Part:
    """Describes the text of one server, as it is and closed, with the export names that are declared in full."""

    server: ServerEntry
    revision: int
    named: frozenset[str]
    texts: tuple[str, str]


def _declared(
    server: ServerEntry, revision: int, named: frozenset[str], known: OutputLookup, got: Got
) -> _Part:
    def outputs(of: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        return got.get((of.server_id, tool.tool_name)) or known(of, tool)

    text = declare_server(server, shared=True, outputs=outputs, typed=named, reading=False)
    if server.is_scripts:
        text += f'declare module "{SCRIPTS}" {{ export * from "{SERVERS_PREFIX}{server.server_id}"; }}\n'
    return _Part(server, revision, named, (text, closed_view(text)))


def _words(code: str) -> frozenset[str]:
    return frozenset(_WORD.findall(code))


def _named(server: ServerEntry, words: frozenset[str]) -> frozenset[str]:
    """Gives the exports that a script with these words can name without computing the name."""
    return frozenset(
        name
        for name in (tool.export_name for tool in server.tools)
        if name in words or not _WORD.fullmatch(name)
    )


def imported_servers(catalog: Catalog, specifiers: Iterable[str]) -> list[ServerEntry]:
    """Gives the servers of a catalog that a script with these imports imports."""
    found = [server_of(catalog, name) for name in specifiers]
    return [server for server in catalog.servers.values() if any(server is one for one in found)]


def closed_view(text: str) -> str:
    """Gives the declarations of a server without what declared keys stand beside: `[key: string]: unknown`.

    An object that declares no key at all stays open, and so do keys with a type of their own.
    """
    return _OPEN_LINE.sub("", _OPEN_AT_END.sub("", text))
