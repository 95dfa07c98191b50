"""What is wrong with overlay files beyond their own text: they do not fit the tools, or what these answer.

Nothing is started for it: of servers that are not connected, the pins say which tools they had when last approved, and
the store what scripts got of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from cellblock.base.errors import ConfigError
from cellblock.base.terminal_text import plain
from cellblock.catalog.model import Catalog
from cellblock.catalog.suggest import nearest_names
from cellblock.config.settings import Settings
from cellblock.learning.observation import NOT_GIVEN, GivenCheck, fingerprint
from cellblock.learning.overlay import OverlayFile, ToolOverlay, overlay_file, read_overlay
from cellblock.learning.store import FILE_NAME, Store, StoreError
from cellblock.schemas.validation import InputValidator
from cellblock.upstream.pins.pin_store import PINS_DIR, PinError, PinStore
from cellblock.upstream.pins.pins import fingerprint as origin_of

LOCAL: Final = "local"
"""The server of Python tools: only a running broker knows them."""

_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)")
"""As TOML's parser and the reader of overlays say it."""

_SHOWN_COLUMNS: Final = 200

Inputs = Mapping[str, Any]
"""Input schemas of a server's tools, by their MCP names."""


@dataclass(frozen=True, slots=True)
class OverlayFault:
    """One fault; `message` has no full stop. An error keeps brokers from starting."""

    file: Path
    message: str
    hint: str
    place: tuple[int, int] = (1, 1)
    server: str | None = None
    tool: str | None = None
    severity: Literal["error", "warning"] = "warning"

    @property
    def where(self) -> str:
        """`file:line:column`."""
        return f"{self.file}:{self.place[0]}:{self.place[1]}"

    @property
    def said(self) -> str:
        """The message and the hint."""
        return f"{self.message}. {self.hint}"

    def __str__(self) -> str:
        return f"{self.where}: {self.said}"

    def as_json(self) -> dict[str, Any]:
        """For machines, as a problem of a configuration with a file of its own."""
        line, column = self.place
        return {
            "severity": self.severity,
            "file": str(self.file),
            "line": line,
            "column": column,
            "path": "" if self.tool is None else f"tools.{self.tool}",
            "message": self.message,
            "hint": self.hint,
        }


def overlay_faults(settings: Settings, catalog: Catalog | None = None) -> list[OverlayFault]:
    """The faults of all overlay files, in the order of the servers.

    Args:
        settings: Which servers there are, and where the files, the pins and the store are.
        catalog: Connected servers, whose tools are then known for sure.
    """
    if not settings.overlay_dir.is_dir():
        return []
    inputs: dict[str, Inputs] = {}
    for server in catalog.servers.values() if catalog is not None else ():
        tools = {tool.tool_name: tool.input_schema for tool in server.tools}
        inputs[server.config_name] = tools | {tool.name: None for tool in server.withheld}
    checks = _checks(settings.state_dir / FILE_NAME)
    files = {name: overlay_file(settings.overlay_dir, name) for name in [*settings.servers, LOCAL]}
    found: list[OverlayFault] = []
    for name, file in files.items():
        try:
            overlay = read_overlay(file)
        except ConfigError as error:
            found.append(_unusable(name, file, error))
            continue
        known = inputs[name] if name in inputs else _pinned(settings, name)
        for tool, one in overlay.tools.items():
            fit = checks.get((name, tool), NOT_GIVEN)
            found += _tool_faults(overlay, name, tool, one, known, fit, file)
    found += _strays(settings.overlay_dir, files)
    return found


def _unusable(server: str, file: Path, error: ConfigError) -> OverlayFault:
    at = _PLACE.search(error.message)
    place = (int(at[1]), int(at[2])) if at is not None else (1, 1)
    message = _PLACE.sub("", error.message).removeprefix(f"{file}: ").rstrip(".")
    return OverlayFault(file, message, error.hint, place, server, severity="error")


def _tool_faults(
    overlay: OverlayFile,
    server: str,
    tool: str,
    given: ToolOverlay,
    known: Inputs | None,
    fit: GivenCheck,
    file: Path,
) -> Iterator[OverlayFault]:
    shown = _shown(tool)
    if known is not None and tool not in known:
        near = nearest_names(tool, known, 1)
        hint = f"Did you mean {_shown(near[0])}?" if near else "Take the table out, or correct its name."
        yield OverlayFault(file, f"{server} has no tool {shown}", hint, overlay.place(tool), server, tool)
        return
    if known is not None and given.examples:
        validator = InputValidator(known[tool])
        for number, (value, _) in enumerate(given.examples):
            violation = validator.check(value)
            if violation is not None:
                said = _shown(violation.said.rstrip("."))
                message = f"example {number + 1} does not fit the input of {shown}: {said}"
                place = overlay.place(tool, "examples", [number, "input"])
                yield OverlayFault(file, message, "Correct the example.", place, server, tool)
    if fit.misfits and fit.of == fingerprint(given.output, given.json_text):
        message = (
            f"{fit.misfits} of {fit.checked} results of {shown} did not fit the output that is given; "
            f"the newest: {_shown(fit.newest)}"
        )
        hint = "Correct output, or take it out."
        yield OverlayFault(file, message, hint, overlay.place(tool, "output"), server, tool)


def _strays(folder: Path, files: Mapping[str, Path]) -> Iterator[OverlayFault]:
    """Files of servers that this configuration does not have."""
    by_stem = {file.stem: name for name, file in files.items()}
    for file in sorted(folder.glob("*.toml")):
        if file.stem not in by_stem:
            near = nearest_names(file.stem, by_stem, 1)
            hint = (
                f"Did you mean {near[0]}.toml?" if near else "Rename it to that of a server, or move it away."
            )
            yield OverlayFault(
                file, f"no server of this configuration has the name {_shown(file.stem)}", hint
            )


def _pinned(settings: Settings, server: str) -> Inputs | None:
    """The pinned tools that a server had when it was last seen; None when that is not known."""
    config = settings.servers.get(server)
    if config is None:
        return None
    try:
        pins = PinStore(settings.state_dir / PINS_DIR).load(server)
    except PinError:
        return None  # `approve` and the broker tell of it.
    if pins is None or pins.origin != origin_of(config):
        return None
    return {name: pin.definition.get("inputSchema") for name, pin in pins.listed().items()}


def _checks(path: Path) -> dict[tuple[str, str], GivenCheck]:
    """How results fitted what was given, by server and tool, the newest definition of each."""
    if not path.is_file():
        return {}
    try:
        store = Store(path)
    except StoreError:
        return {}  # The broker tells of it.
    try:
        rows = sorted(store.load().items(), key=lambda row: row[1].last_seen)
    except StoreError:
        return {}
    finally:
        store.close()
    return {(key.server, key.tool): seen.given for key, seen in rows}


def _shown(text: str) -> str:
    return plain(text, _SHOWN_COLUMNS)
