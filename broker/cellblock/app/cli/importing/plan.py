"""Which servers an import takes, which not and why, which secrets it leaves behind, and what a person is shown of one
before they agree; and the writing of it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import ValidationError

from cellblock.app.cli.arguments import DEFAULT_ADDRESS
from cellblock.app.cli.config_file import OwnFile, real_path
from cellblock.app.cli.importing.entries import Found
from cellblock.app.cli.importing.known import CLIENTS
from cellblock.app.config.client_permissions import shown_path
from cellblock.app.config.edit import KeyPath
from cellblock.app.config.formats import slip_hint, slips, value_at
from cellblock.app.config.named_secrets import NamedSecrets, bind, bound
from cellblock.app.config.references import (
    input_variable,
    literal,
    names_in,
    origin_of,
    references_in,
    unescaped,
)
from cellblock.base.json import is_array, is_object, mapped
from cellblock.base.loopback import is_loopback
from cellblock.base.secret_values import looks_secret
from cellblock.base.settings.problems import SECTION_KEY, dotted, of_validation
from cellblock.base.settings.sections import ALL
from cellblock.base.settings.server import SERVER_KEYS, ServerConfig
from cellblock.base.terminal import Painter, spelled_out

Fate = Literal["added", "present", "conflict", "itself", "unusable"]

Place = Literal["environment", "keyring", "file"]

_INPUT: Final = re.compile(r"(?<!\$)\$\{input:([^{}]+)\}")
_VARIABLE: Final = re.compile(r"(?<!\$)\$\{(?:env:)?([A-Za-z_]\w*)\}")
"""Matches variables without which an entry does not work: one with a default is no such."""
_PLACE: Final = re.compile(r"(?<!\$)\$\{workspaceFolder(?:Basename)?\}")
_OWN_PROGRAM: Final = re.compile(r"cellblock(?:[=@~<>!\[].*)?")
_OWN_MODULE: Final = re.compile(r"cellblock(?:\.cli)?")
_PYTHON: Final = re.compile(r"python[\d.]*|py")
_RUNNERS: Final = {"uvx": (), "uv": ("tool", "run"), "pipx": ("run",)}
"""Maps programs that start another one to the words that may stand before it."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step is what becomes of one server. `entry` is what is written, `secrets` the variables it then needs."""

    found: Found
    fate: Fate
    why: str = ""
    entry: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secrets: tuple[str, ...] = ()

    @property
    def restrictions(self) -> tuple[str, ...]:
        """Says what the client's other settings add to what is written."""
        return self.found.restrictions if self.fate == "added" else ()

    @property
    def left(self) -> list[str]:
        """Names what of the entry is not carried over into what is written."""
        return self.found.left if self.fate == "added" else []

    @property
    def source(self) -> str:
        """Says where the server comes from, for people."""
        return f"{CLIENTS[self.found.client].title}, {shown_path(self.found.file)}"

    @property
    def of_project(self) -> bool:
        """Says whether a file in the project's folder has it, which may be a stranger's."""
        project = self.found.project
        return project is not None and self.found.file.is_relative_to(project)

    @property
    def reached(self) -> str:
        """Returns the command or the host, without arguments, which may hold secrets."""
        entry: object = self.found.entry
        if not is_object(entry):
            return "?"
        command = entry.get("command")
        return (command if isinstance(command, str) else _parts(str(entry.get("url"))).hostname) or "?"

    def as_json(self) -> dict[str, Any]:
        """Returns the step for machines; no values."""
        return {
            "server": self.found.name,
            "fate": self.fate,
            "why": self.why,
            "client": self.found.client,
            "file": str(self.found.file),
            "path": dotted(self.found.path),
            "reached": self.reached,
            "variables": list(self.secrets),
            "restrictions": list(self.restrictions),
            "left": self.left,
        }


@dataclass(slots=True)
class Plan:
    """A plan has all steps, in the order of the search. `inputs` are variables that stand for what VS Code asks for and
    for what a client keeps elsewhere; `values` are secrets for the keyring, by their names there, and `moved` those
    and the ones that it has already."""

    steps: list[Step] = field(default_factory=list[Step])
    inputs: set[str] = field(default_factory=set[str])
    values: dict[str, str] = field(default_factory=dict[str, str])
    moved: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def added(self) -> dict[str, Mapping[str, Any]]:
        return {step.found.name: step.entry for step in self.steps if step.fate == "added"}

    @property
    def bounds(self) -> dict[str, dict[str, int]]:
        """Returns the settings of `upstream` to write, each by the servers' names."""
        made: dict[str, dict[str, int]] = {}
        for step in self.steps:
            if step.fate == "added":
                for setting, value in step.found.bounds.items():
                    made.setdefault(setting, {})[step.found.name] = value
        return made

    @property
    def needed(self) -> dict[str, Step]:
        """Returns the variables that have to be set for the new servers, each with the first that needs it."""
        needed: dict[str, Step] = {}
        for step in self.steps:
            for name in step.secrets:
                needed.setdefault(name, step)
        return needed

    @property
    def secrets(self) -> int:
        """Counts the secrets that are left behind, or go into the keyring."""
        return len(self.needed.keys() - self.inputs) + len(self.values)

    def of_file(self, file: Path) -> Plan:
        return Plan([step for step in self.steps if real_path(step.found.file) == file], self.inputs)


def make_plan(
    found: Sequence[Found],
    present: Mapping[str, Any],
    *,
    secrets: Place = "environment",
    kept: Callable[[str], str | None] = lambda _: None,
    environment: Collection[str] | None = None,
) -> Plan:
    """Decides what to do with each server that was found.

    Args:
        found: The servers; of one name the first is taken.
        present: The entries that the configuration has already.
        secrets: What is written in place of values that look like secrets; `file`: they themselves.
        kept: Gives what the keyring has under a name already: another value gets another name.
        environment: The variables that are set: servers that need others stay where they work. None: they are taken.
    """
    plan = Plan()
    hidden_in = Secrets("keyring", kept) if secrets == "keyring" else Secrets()
    plan.moved = hidden_in.variables if secrets == "keyring" else {}
    taken: dict[str, tuple[Mapping[str, Any], str]] = {}
    for server in found:
        entry = _usable(server)
        if isinstance(entry, Step):
            plan.steps.append(entry)
            continue
        name = server.name
        before, first = taken.get(name, (None, ""))
        if before is not None:
            plan.steps.append(
                Step(server, "present", f"the same as that of {first}")
                if before == entry
                else Step(server, "conflict", f"{first} has another server of this name")
            )
            continue
        inputs = {input_variable(wanted) for wanted in _INPUT.findall(str(entry))}
        inputs |= set(server.variables)
        named = mapped(entry, lambda text, known=server.inputs: _with_variables(text, known))
        hidden, variables = hidden_in.taken_out(name, named)
        written = named if secrets == "file" else hidden
        needed = [*dict.fromkeys((*(variables if secrets == "environment" else ()), *sorted(inputs)))]
        if environment is not None and (why := _why_unset(present.get(name, written), named, environment)):
            plan.steps.append(Step(server, "unusable", why))
            continue
        if name in present:
            plan.steps.append(
                Step(server, "present", "it is in the configuration already")
                if present[name] in (entry, named, hidden)
                else Step(server, "conflict", "the configuration has another server of this name")
            )
            continue
        taken[name] = (entry, CLIENTS[server.client].title)
        plan.inputs |= inputs
        if secrets == "keyring":
            plan.values |= {variable: hidden_in.variables[variable] for variable in variables}
        plan.steps.append(Step(server, "added", "", written, tuple(needed)))
    return plan


def runs_cellblock(entry: Mapping[str, Any]) -> bool:
    """Says whether an entry runs Cellblock, which must not be behind itself."""
    args = entry.get("args")
    words = [
        word for word in (entry.get("command"), *(args if is_array(args) else [])) if isinstance(word, str)
    ]
    try:
        parts = urlsplit(str(entry.get("url", "")))
        port = parts.port
    except ValueError:
        return False
    here = is_loopback(parts.hostname) and port == int(DEFAULT_ADDRESS.rpartition(":")[2])
    return here or _starts_cellblock(words)


# ---- inside ------------------------------------------------------------------------------------------


def _starts_cellblock(words: Sequence[str]) -> bool:
    """Says whether a command is Cellblock: its program, or what a runner, `env` or `python -m` starts. Any other word
    may be a folder of the name."""
    program = PurePath(words[0]).name if words else ""
    if program == "env":
        return _starts_cellblock([one for one in words[1:] if "=" not in one and not one.startswith("-")])
    if _PYTHON.fullmatch(program):
        return any(option == "-m" and _OWN_MODULE.fullmatch(module) for option, module in pairwise(words[1:]))
    if program not in _RUNNERS:
        return _OWN_PROGRAM.fullmatch(program) is not None
    before = ""
    for word in words[1:]:
        if _OWN_PROGRAM.fullmatch(word):
            return True
        # What stands behind an option may be its value.
        if not word.startswith("-") and not before.startswith("-") and word not in _RUNNERS[program]:
            return False
        before = word
    return False


def _usable(server: Found) -> dict[str, Any] | Step:
    """Returns the keys that Cellblock reads, with paths as they are where the entry is, or why they are of no use."""
    raw: object = server.entry
    if not is_object(raw):
        return Step(server, "unusable", "its entry is no object")
    if not server.name.strip():
        return Step(server, "unusable", "it has no name")
    if runs_cellblock(raw):
        return Step(server, "itself", "it is Cellblock itself")
    if server.trouble:
        return Step(server, "unusable", server.trouble)
    for key, meant in slips(raw, SERVER_KEYS).items():
        return Step(server, "unusable", f"{dotted([key])}: unknown key. {slip_hint(meant)}")
    entry = {key: value for key, value in raw.items() if key in SERVER_KEYS}
    if (folder := server.project) is not None:
        # Whoever made the folder's name is no author of references.
        whole = literal(str(folder))
        places = {"${workspaceFolderBasename}": literal(folder.name), "${workspaceFolder}": whole}
        entry = mapped(entry, lambda text: _PLACE.sub(lambda found: places[found[0]], text))
        if "command" in entry:
            # Clients start a project's servers in its folder.
            entry["cwd"] = str(Path(whole) / entry.get("cwd", ""))
    if isinstance(file := entry.get("envFile"), str) and "${" not in file:
        entry["envFile"] = str(
            Path(literal(str(server.project or server.file.parent)), Path(file).expanduser())
        )
    try:
        ServerConfig.model_validate(entry)
    except ValidationError as error:
        problem = of_validation(error, ServerConfig, entry)[0]
        return Step(server, "unusable", f"{problem.place or 'its entry'}: {problem.message}")
    return entry


def _why_unset(entry: Any, named: object, environment: Collection[str]) -> str:
    """Says which variables and files an entry lacks here; nothing where it has all."""
    files = [*names_in(str(entry), "file"), *([entry["envFile"]] if "envFile" in entry else [])]
    if lost := [file for file in files if not Path(file).expanduser().is_file()]:
        return f"without {', '.join(lost)} it would not start"
    unset = [name for name in dict.fromkeys(_VARIABLE.findall(str(entry))) if name not in environment]
    if not unset:
        return ""
    asked = [name for name in unset if name in _VARIABLE.findall(str(named))]
    keep = "; ".join(f"`cellblock secret set {name}`" for name in asked)
    how = f"{keep}, and `cellblock add` it with ${{keyring:{asked[0]}}}" if asked else "--secrets keyring"
    return (
        f"without {', '.join(unset)} it would not start. Set that variable here and for Cellblock, or: {how}"
    )


def _with_variables(text: str, inputs: Mapping[str, Any]) -> str:
    """Puts environment variables in place of VS Code's inputs: the file that names them is left behind."""

    def variable(found: re.Match[str]) -> str:
        wanted = inputs.get(found[1])
        default = wanted.get("default") if is_object(wanted) else None
        name = input_variable(found[1])
        usable = isinstance(default, str) and not {"{", "}"} & {*default}
        return f"${{{name}:-{default}}}" if usable else f"${{env:{name}}}"

    return _INPUT.sub(variable, text)


def add_servers(target: OwnFile, plan: Plan) -> Path | None:
    """Writes the file with the servers of a plan, and its secrets into the keyring before that.

    Returns:
        The copy of the old file, or None when there was none.

    Raises:
        ConfigError: What is added makes the file wrong, it has changed since it was read, or cannot be written.
        KeyringError: The keyring does not keep a secret; the file is left as it was.
    """
    changes: dict[KeyPath, Any] = {target.place(name): entry for name, entry in plan.added.items()}
    for setting, values in plan.bounds.items():
        path = (SECTION_KEY, "upstream", setting)
        present = value_at(target.data, path)
        if present is None or is_object(present):
            changes |= {(*path, name): value for name, value in values.items()}
        else:
            changes[path] = {ALL: present, **values}
    target.change(changes)
    target.check()
    if plan.values:
        secrets = NamedSecrets()
        # Those that a person has set stay free, and are set to what they are.
        own = {*secrets.names()} - bound().keys()
        for name, value in plan.values.items():
            secrets.put(name, value)
        for entry in plan.added.values():
            for name in {*names_in(json.dumps(entry), "keyring")} & plan.values.keys() - own:
                bind(name, origin_of(entry))
    return target.write(private=True)


_SCHEME: Final = re.compile(r"(Bearer|Basic|Token|ApiKey)\s+", re.I)


@dataclass(slots=True)
class Secrets:
    """Holds the variables that stand for secrets: their values by name, over all servers that are imported together.

    Args:
        kind: The kind of reference that is put in their place, `env` or `keyring`.
        kept: Gives the value that a name has there already.
    """

    kind: str = "env"
    kept: Callable[[str], str | None] = lambda _: None
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def taken_out(self, server: str, entry: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Returns an entry with references in place of its secrets, and the variables that those name."""
        written, used = dict(entry), list[str]()

        def replaced(value: str, wanted: str) -> str:
            name = self._variable(value, wanted, server)
            used.append(name)
            return f"${{{self.kind}:{name}}}"

        for key in ("env", "headers"):
            if is_object(pairs := entry.get(key)):
                written[key] = {
                    name: _named(name, value, server, key, replaced) for name, value in pairs.items()
                }
        if is_array(args := entry.get("args")):
            written["args"] = _options(args, server, replaced)
        if isinstance(entry.get("url"), str):
            written["url"] = _address(entry["url"], server, replaced)
        return written, list(dict.fromkeys(used))

    def _variable(self, value: str, wanted: str, server: str) -> str:
        value = unescaped(value)
        numbered = (f"{wanted}_{number}" for number in itertools.count(2))
        for name in itertools.chain((wanted, input_variable(f"{server}_{wanted}")), numbered):
            is_free = name in self.variables or self.kept(name) in (None, value)
            if is_free and self.variables.setdefault(name, value) == value:
                return name
        raise AssertionError  # the numbers do not end


def _named(name: str, value: Any, server: str, kind: str, replaced: Any) -> Any:
    if not isinstance(value, str) or not looks_secret(name, value):
        return value
    if kind == "env":
        return replaced(value, input_variable(name))
    scheme = _SCHEME.match(value)
    prefix = scheme[0] if scheme else ""
    return prefix + replaced(value[len(prefix) :], input_variable(f"{server}_{name}"))


def _options(args: list[Any], server: str, replaced: Any) -> list[Any]:
    written: list[Any] = []
    option = ""
    for arg in args:
        if not isinstance(arg, str):
            written.append(arg)
            option = ""
            continue
        name, equals, value = arg.partition("=")
        if equals and name.startswith("-") and looks_secret(name, value):
            arg = f"{name}={replaced(value, input_variable(f'{server}_{name}'))}"
        elif "://" in arg:
            arg = _address(arg, server, replaced)
        elif not arg.startswith("-") and looks_secret(option, arg):
            arg = replaced(arg, input_variable(f"{server}_{option}" if option else f"{server}_SECRET"))
        option = arg if arg.startswith("-") and "=" not in arg else ""
        written.append(arg)
    return written


def _address(url: str, server: str, replaced: Any) -> str:
    """Returns a URL with references for its password and for query values that are secrets."""
    parts = _parts(url)
    if parts.password and looks_secret("password", parts.password):
        # By its place: the same word may stand elsewhere in the URL.
        user, _, rest = parts.netloc.rpartition("@")
        name, _, written = user.partition(":")
        netloc = f"{name}:{replaced(written, input_variable(f'{server}_PASSWORD'))}@{rest}"
        url = url.replace(f"//{parts.netloc}", f"//{netloc}", 1)
    for pair in parts.query.split("&") if parts.query else ():
        name, _, written = pair.partition("=")
        if looks_secret(unquote(name), unquote(written)):
            # As it is written: what a variable holds is put in without encoding.
            reference = replaced(written, input_variable(f"{server}_{unquote(name)}"))
            url = url.replace(pair, f"{name}={reference}", 1)
    return url


_CHANGES_CODE: Final = re.compile(
    r"(?:LD|DYLD)_\w+|PATH|PYTHON\w+|NODE_\w+|BASH_ENV|ENV|(?:PERL5|RUBY)(?:LIB|OPT)|GIT_\w+"
    r"|(?:_|JDK_)?JAVA_(?:TOOL_)?OPTIONS",
    re.I,
)
"""Matches variables that have a program run, or load, something else."""

_IS_CODE: Final = frozenset({"-c", "-e", "--eval", "--require", "--import"})
"""Names options behind which code stands."""


def entry_lines(step: Step, paint: Painter) -> list[str]:
    """Returns the whole entry, line by line; what decides which code runs is marked."""
    lines: list[str] = []
    for text, marked in _lines(step):
        shown = spelled_out(text)
        lines.append(f"    {paint('!', 'yellow')} {paint(shown, 'yellow')}" if marked else f"      {shown}")
    return lines


def _lines(step: Step) -> Iterator[tuple[str, bool]]:
    entry, _ = Secrets().taken_out(step.found.name, step.entry)
    reached = str(entry.get("url", ""))
    if isinstance(command := entry.get("command"), str):
        reached = _program(command, entry)
        args = entry.get("args")
        words = [str(word) for word in (args if is_array(args) else ())]
        shown = (shlex.quote(spelled_out(word)) for word in (reached, *words))
        yield f"runs {' '.join(shown)}", not _IS_CODE.isdisjoint(words)
    for key, value in entry.items():
        if key in ("env", "headers") and is_object(value):
            for name, text in value.items():
                yield f"{key} {name}: {text}", key == "env" and bool(_CHANGES_CODE.fullmatch(name))
        elif key not in ("command", "args"):
            yield f"{dotted([key])} {value}", key == "inheritEnv" and value is not False
    if found := references_in(str(entry)):
        yield f"gives {', '.join(found)} to {_origin(reached)}", False


def _origin(reached: str) -> str:
    parts = _parts(reached)
    return f"{parts.scheme}://{parts.netloc}" if parts.netloc else reached


def _parts(url: str) -> SplitResult:
    """Returns the parts of a URL; empty ones of what is none."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _program(command: str, entry: Mapping[str, Any]) -> str:
    """Returns the path of what would be executed."""
    if "/" in command:
        return os.path.normpath(Path.cwd() / str(entry.get("cwd", "")) / command)
    env = entry.get("env")
    return shutil.which(command, path=env.get("PATH") if is_object(env) else None) or command
