"""What an import would do: which servers it takes, which not and why, and which secrets it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, Literal, cast
from urllib.parse import urlsplit

from pydantic import ValidationError

from cellblock.cli.importing.clients import TITLES, Found
from cellblock.cli.importing.secrets import Secrets
from cellblock.config.file.entry_keys import slip_hint, slips
from cellblock.config.file.problems import dotted, of_validation
from cellblock.config.file.references import input_variable
from cellblock.config.settings import SERVER_KEYS, ServerConfig

Fate = Literal["added", "present", "conflict", "itself", "unusable"]

_INPUT: Final = re.compile(r"\$\{input:([^{}]+)\}")
_OWN_WORDS: Final = re.compile(r"cellblock(?:[=@~<>!\[].*)?|cellblock\.cli")
_OWN_ADDRESS: Final = "127.0.0.1:7433"


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of one server. `entry` is what is written, `secrets` the variables it then needs."""

    found: Found
    fate: Fate
    why: str = ""
    entry: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secrets: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where the server comes from, for people."""
        return f"{TITLES[self.found.client]}, {shown_path(self.found.file)}"

    @property
    def reached(self) -> str:
        """The program or the host, without arguments, which may hold secrets."""
        return reached(self.found.entry)

    def as_json(self) -> dict[str, Any]:
        """For machines; no values."""
        return {
            "server": self.found.name,
            "fate": self.fate,
            "why": self.why,
            "client": self.found.client,
            "file": str(self.found.file),
            "path": dotted(self.found.path),
            "reached": self.reached,
            "variables": list(self.secrets),
        }


@dataclass(slots=True)
class Plan:
    """All steps, in the order of the search. `inputs` are variables that stand for what VS Code asks for."""

    steps: list[Step] = field(default_factory=list[Step])
    inputs: set[str] = field(default_factory=set[str])

    @property
    def added(self) -> dict[str, Mapping[str, Any]]:
        """The entries to write."""
        return {step.found.name: step.entry for step in self.steps if step.fate == "added"}

    @property
    def needed(self) -> dict[str, Step]:
        """The variables that have to be set for the new servers, each with the first that needs it."""
        needed: dict[str, Step] = {}
        for step in self.steps:
            if step.fate == "added":
                for name in step.secrets:
                    needed.setdefault(name, step)
        return needed

    @property
    def secrets(self) -> int:
        """How many secrets are left behind."""
        return len(self.needed.keys() - self.inputs)


def make_plan(
    found: Sequence[Found],
    present: Mapping[str, Any],
    *,
    copy_secrets: bool,
    ignored: Collection[str] = (),
) -> Plan:
    """What to do with each server that was found.

    Args:
        found: The servers; of one name the first is taken.
        present: The entries that the configuration has already.
        copy_secrets: Whether values that look like secrets are written as they are.
        ignored: Keys that the configuration says are another program's: none of them counts as a slip.
    """
    plan = Plan()
    secrets = Secrets()
    taken: dict[str, tuple[Mapping[str, Any], str]] = {}
    for server in found:
        plan.steps.append(_step(server, present, taken, secrets, plan, copy_secrets, ignored))
    return plan


def reached(entry: Any) -> str:
    """The program or the host of an entry."""
    if not isinstance(entry, dict):
        return "?"
    known = cast("dict[str, Any]", entry)
    if isinstance(known.get("command"), str):
        return PurePath(known["command"]).name or "?"
    try:
        return urlsplit(str(known.get("url"))).hostname or "?"
    except ValueError:
        return "?"


def runs_cellblock(entry: Mapping[str, Any]) -> bool:
    """Whether an entry is Cellblock itself, which must not be behind itself."""
    words = [
        entry.get("command"),
        *(cast("list[Any]", entry["args"]) if isinstance(entry.get("args"), list) else []),
    ]
    if any(isinstance(word, str) and _OWN_WORDS.fullmatch(PurePath(word).name) for word in words):
        return True
    return _OWN_ADDRESS in str(entry.get("url", ""))


def shown_path(file: Path) -> str:
    """A path with `~` for the user's own folder."""
    try:
        return f"~/{file.relative_to(Path.home())}"
    except ValueError:
        return str(file)


# ---- inside ------------------------------------------------------------------------------------------


def _step(
    server: Found,
    present: Mapping[str, Any],
    taken: dict[str, tuple[Mapping[str, Any], str]],
    secrets: Secrets,
    plan: Plan,
    copy_secrets: bool,
    ignored: Collection[str],
) -> Step:
    said: object = server.entry
    if not isinstance(said, dict):
        return Step(server, "unusable", "its entry is no object")
    raw = cast("dict[str, Any]", said)
    if runs_cellblock(raw):
        return Step(server, "itself", "it is Cellblock itself")
    for key, meant in slips(raw, SERVER_KEYS).items():
        if key not in ignored:
            return Step(server, "unusable", f"{dotted([key])}: unknown key. {slip_hint(meant)}")
    entry = _ours(raw, server)
    try:
        ServerConfig.model_validate(entry)
    except ValidationError as error:
        problem = of_validation(error, ServerConfig)[0]
        return Step(server, "unusable", f"{problem.place or 'its entry'}: {problem.message}")
    before = taken.get(server.name)
    if before is not None:
        if before[0] == entry:
            return Step(server, "present", f"the same as that of {before[1]}")
        return Step(server, "conflict", f"{before[1]} has another server of this name")
    inputs = {input_variable(wanted) for wanted in _INPUT.findall(str(entry))}
    named = _with_variables(entry, server.inputs)
    hidden, variables = secrets.taken_out(server.name, named)
    if server.name in present:
        same = present[server.name] in (entry, named, hidden)
        if same:
            return Step(server, "present", "it is in the configuration already")
        return Step(server, "conflict", "the configuration has another server of this name")
    taken[server.name] = (entry, TITLES[server.client])
    plan.inputs |= inputs
    written = named if copy_secrets else hidden
    needed = sorted(inputs) if copy_secrets else [*variables, *sorted(inputs)]
    return Step(server, "added", "", written, tuple(dict.fromkeys(needed)))


def _ours(raw: Mapping[str, Any], server: Found) -> dict[str, Any]:
    """The keys that Cellblock reads, and paths as they are where the entry comes from."""
    entry = {key: value for key, value in raw.items() if key in SERVER_KEYS}
    if server.project is not None:
        entry = _in_folder(entry, str(server.project))
        if "command" in entry:
            # Clients start a project's servers in its folder.
            entry.setdefault("cwd", str(server.project))
    return entry


def _in_folder(value: Any, folder: str) -> Any:
    if isinstance(value, str):
        named = value.replace("${workspaceFolderBasename}", PurePath(folder).name)
        return named.replace("${workspaceFolder}", folder)
    if isinstance(value, list):
        return [_in_folder(item, folder) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _in_folder(item, folder) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _with_variables(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Inputs of VS Code as environment variables: the file that names them is left behind."""
    if isinstance(value, str):
        return _INPUT.sub(lambda found: _variable_of(found[1], inputs), value)
    if isinstance(value, list):
        return [_with_variables(item, inputs) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value).items()
        return {key: _with_variables(item, inputs) for key, item in pairs}
    return value


def _variable_of(wanted: str, inputs: Mapping[str, Any]) -> str:
    said = inputs.get(wanted)
    default = cast("dict[str, Any]", said).get("default") if isinstance(said, dict) else None
    name = input_variable(wanted)
    return (
        f"${{{name}:-{default}}}" if isinstance(default, str) and "}" not in default else f"${{env:{name}}}"
    )
