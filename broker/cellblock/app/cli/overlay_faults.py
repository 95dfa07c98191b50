"""Overlay_faults finds what is wrong with overlay files: they do not fit the tools, or what these answer.

Nothing is started for it: of servers that are not connected, the pins say which tools they had when last approved, and
the store what scripts got of them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cellblock.app.assembly import store_of
from cellblock.app.cli.loading import store_to_read
from cellblock.base.database import StoreError
from cellblock.base.errors import ConfigError
from cellblock.base.settings.problems import Problem
from cellblock.base.settings.settings import ServerConfig, Settings
from cellblock.base.settings.syntax import Position
from cellblock.base.store import LocalStore, Store
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.base.terminal import plain
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.schemas.validation import InputValidator
from cellblock.tools.upstream.pins import PinError, PinStore
from cellblock.tools.upstream.pins import fingerprint as origin_of
from cellblock.types.learning.observation import NOT_GIVEN, GivenCheck, fingerprint
from cellblock.types.learning.overlay import OverlayFile, overlay_file, read_overlay
from cellblock.types.learning.store import TABLES, Observations

LOCAL: Final = "local"
"""Names the server of Python tools: only a running broker knows them."""

_PLACE: Final = re.compile(r" \(at line (\d+), column (\d+)\)")
"""Finds a place as TOML's parser and the reader of overlays say it."""

_SHOWN_COLUMNS: Final = 200

Inputs = Mapping[str, Any]
"""Maps a server's tools, by their MCP names, to their input schemas."""


@dataclass(frozen=True, slots=True)
class OverlayFault(Problem):
    """A problem of an overlay file. An error keeps brokers from starting."""

    file: Path = Path()

    def as_json(self) -> dict[str, Any]:
        return {**Problem.as_json(self), "file": str(self.file)}


def overlay_faults(settings: Settings, catalog: Catalog | None = None) -> list[OverlayFault]:
    """Returns the faults of all overlay files, in the order of the servers; `catalog` knows the tools of some."""
    folder = settings.overlay_dir
    if not folder.is_dir():
        return []
    pins = PinStore(_small_things(settings))
    inputs: dict[str, Inputs] = {}
    for server in catalog.servers.values() if catalog is not None else ():
        tools = {tool.tool_name: tool.input_schema for tool in server.tools}
        inputs[server.config_name] = tools | {tool.name: None for tool in server.withheld}
    checks = _checks(settings)
    files = {name: overlay_file(folder, name) for name in [*settings.servers, LOCAL]}
    found: list[OverlayFault] = []
    for name, file in files.items():
        try:
            overlay = read_overlay(file)
        except ConfigError as error:
            found.append(_unusable(file, error))
            continue
        known = inputs[name] if name in inputs else _pinned(pins, name, settings.servers.get(name))
        for tool in overlay.tools:
            fit = checks.get((name, tool), NOT_GIVEN)
            found += _tool_faults(overlay, name, tool, known, fit, file)
    found += _strays(folder, files)
    return found


def _unusable(file: Path, error: ConfigError) -> OverlayFault:
    at = _PLACE.search(error.message)
    place = (int(at[1]), int(at[2])) if at is not None else (1, 1)
    message = _PLACE.sub("", error.message).removeprefix(f"{file}: ").rstrip(".")
    return OverlayFault((), message, error.hint, position=Position(*place), file=file)


def _tool_faults(
    overlay: OverlayFile,
    server: str,
    tool: str,
    known: Inputs | None,
    fit: GivenCheck,
    file: Path,
) -> Iterator[OverlayFault]:
    given, shown = overlay.tools[tool], _shown(tool)

    def fault(message: str, hint: str, *keys: str) -> OverlayFault:
        place = Position(*overlay.place(tool, *keys))
        return OverlayFault(("tools", tool), message, hint, "warning", position=place, file=file)

    if known is not None and tool not in known:
        near = map(_shown, nearest_names(tool, known, 1))
        hint = did_you_mean(near, "Take the table out, or correct its name.")
        yield fault(f"{server} has no tool {shown}", hint)
        return
    if known is not None and given.examples:
        validator = InputValidator(known[tool])
        for number, example in enumerate(given.examples):
            violation = validator.check(example.input)
            if violation is not None:
                why = _shown(violation.sentence.rstrip("."))
                message = f"example {number + 1} does not fit the input of {shown}: {why}"
                yield fault(message, "Correct the example.", "examples")
    if fit.misfits and fit.of == fingerprint(given.output_schema, given.json_text):
        message = (
            f"{fit.misfits} of {fit.checked} results of {shown} did not fit the output that is given; "
            f"the newest: {_shown(fit.newest)}"
        )
        yield fault(message, "Correct output, or take it out.", "output")


def _strays(folder: Path, files: Mapping[str, Path]) -> Iterator[OverlayFault]:
    """Yields the files of servers that this configuration does not have."""
    by_stem = {file.stem: name for name, file in files.items()}
    for file in sorted(folder.glob("*.toml")):
        if file.stem not in by_stem:
            near = (f"{name}.toml" for name in nearest_names(file.stem, by_stem, 1))
            message = f"no server of this configuration has the name {_shown(file.stem)}"
            hint = did_you_mean(near, "Rename it to that of a server, or move it away.")
            yield OverlayFault((), message, hint, "warning", position=Position(1, 1), file=file)


def _pinned(store: PinStore, server: str, config: ServerConfig | None) -> Inputs | None:
    """Returns the tools that a server had when they were pinned; None when that is not known."""
    if config is None:
        return None
    try:
        pins = store.load(server)
    except PinError:
        return None  # `approve` and the broker tell of it.
    if pins is None or pins.origin != origin_of(config):
        return None
    return {name: pin.definition.get("inputSchema") for name, pin in pins.listed().items()}


def _small_things(settings: Settings) -> Store:
    with contextlib.suppress(ConfigError):  # the broker tells of it
        return store_to_read(settings)
    return LocalStore(settings.state_dir)


def _checks(settings: Settings) -> dict[tuple[str, str], GivenCheck]:
    """Returns how results fitted what was given, by server and tool, the newest definition of each."""
    try:
        store = store_of(settings)
        if not store.exists(TABLES):
            return {}
        with contextlib.closing(Observations(store.database(TABLES))) as observations:
            rows = sorted(observations.load().items(), key=lambda row: row[1].last_seen)
    except (StoreError, ConfigError):
        return {}  # The broker tells of it.
    return {(key.server, key.tool): seen.given for key, seen in rows}


def _shown(text: str) -> str:
    return plain(text, _SHOWN_COLUMNS)
