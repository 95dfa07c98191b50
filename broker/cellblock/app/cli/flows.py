"""Flows runs the commands `flows`: what principals' models have read, and how to forget it; and writes rules of flows
into the configuration file."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellblock.app.cli.loading import of_state, store_to_read
from cellblock.app.cli.streams import answer, write_data
from cellblock.app.config.formats import value_at
from cellblock.base.database import StoreError
from cellblock.base.errors import CellblockError, ConfigError
from cellblock.base.json import is_array
from cellblock.base.settings.problems import SECTION_KEY
from cellblock.base.terminal import harmless
from cellblock.record.flow_labels import FlowLabels
from cellblock.run.flows.labels import secrecy_of

logger = logging.getLogger("cellblock.flows")

PLACE = (SECTION_KEY, "policy", "flows")


def show(parsed: argparse.Namespace) -> None:
    """Prints what principals' models have read. Raises ConfigError: That cannot be known."""
    kept = _labels(parsed, FlowLabels.all)
    found = [
        {
            "principal": one.reader,
            "secrecy": secrecy_of(one.label.secrecy),
            "trust": "trusted" if one.label.trusted else "untrusted",
            "since": one.since,
            "at": one.at,
        }
        for one in kept
    ]
    text = "".join(
        harmless(f"{one.reader}: {one.label}, since {_day(one.since)}, last {_day(one.at)}\n") for one in kept
    )
    answer(parsed, found, text or "Nobody has read anything private or untrusted.\n")


def reset(parsed: argparse.Namespace) -> None:
    """Forgets what principals' models have read. Raises ConfigError: That cannot be done."""
    forgotten = _labels(parsed, lambda labels: labels.reset(parsed.principal))
    write_data(harmless(f"forgotten: {', '.join(forgotten) or 'nothing was known'}\n"))


def always_in(config: str | Path | None) -> Callable[[dict[str, Any]], None]:
    """Makes what writes a rule of flows into the file that `--config` names, or the user's own, before its others."""

    def write(rule: dict[str, Any]) -> None:
        try:
            write_rule(config, rule)
        except (CellblockError, OSError) as error:
            logger.warning("a rule of flows could not be written into the configuration file: %s", error)

    return write


def write_rule(config: str | Path | None, rule: dict[str, Any]) -> Path:
    """Writes a rule of flows before the others of the file. Raises ConfigError."""
    # What edits files is not imported where nothing is edited: `serve` starts without it.
    from cellblock.app.cli.config_file import OwnFile

    file = OwnFile(config)
    flows: Any = value_at(file.data, PLACE)
    file.change({PLACE: [rule, *(flows if is_array(flows) else ["guard"])]})
    file.check()
    file.write()
    return file.path


def _labels(parsed: argparse.Namespace, ask: Callable[[FlowLabels], Any]) -> Any:
    settings = of_state(parsed)
    try:
        return ask(FlowLabels(store_to_read(settings)))
    except (OSError, StoreError, ValueError) as error:
        raise ConfigError(f"What was read cannot be known: {error}.", hint="Check --state-dir.") from None


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
