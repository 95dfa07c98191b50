"""The commands `install` and `import`: Cellblock into MCP clients' own files or out of them, their servers here."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from cellblock.app.cli.approval import first_look
from cellblock.app.cli.arguments import UsageError
from cellblock.app.cli.config_file import ConfigFile, OwnFile, real_path
from cellblock.app.cli.edit_servers import tell_unused
from cellblock.app.cli.importing.entries import Found, Search, find_servers
from cellblock.app.cli.importing.known import CLIENTS, NAME, Client, Launch, own_command
from cellblock.app.cli.importing.plan import Place, Plan, add_servers, entry_lines, make_plan, runs_cellblock
from cellblock.app.cli.parser import CLIENTS as CLIENT_NAMES
from cellblock.app.cli.streams import agreed, asks, write_json
from cellblock.app.config.client_permissions import shown_path
from cellblock.app.config.edit import REMOVED, KeyPath, edited, format_of, read
from cellblock.app.config.formats import value_at
from cellblock.app.config.load import load_settings
from cellblock.app.config.named_secrets import NamedSecrets, forget, opened, seal
from cellblock.base.errors import ConfigError, counted
from cellblock.base.json import is_array, is_object, mapped
from cellblock.base.keyrings import KeyringError
from cellblock.base.settings.problems import dotted
from cellblock.base.terminal import Painter, spelled_line, spelled_out

_STARTED: Final = ("type", "source", "command", "cmd", "args", "enabled")
"""Names the keys of an entry that say how Cellblock is started."""

_REACHED: Final = ("url", "uri", "httpUrl", "serverUrl", "headers")
"""Names the keys of an entry that was one for an address; a program has none of them."""

_DIFFERENCE_SIGNS: Final = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(slots=True)
class Step:
    """A step is what becomes of one client's file. `plan` says which of its servers are taken over, `given_back` which
    are its own again, and `unread` which of their secrets are given back as they were."""

    name: str
    file: ConfigFile
    key: KeyPath
    plan: Plan
    given_back: list[str]
    unread: list[str]

    def as_json(self, copy: Path | None, *, written: bool) -> dict[str, Any]:
        return {
            "client": self.name,
            "file": str(self.file.path),
            "changed": self.file.changed,
            "written": written,
            "backup": None if copy is None else str(copy),
            "taken_over": list(self.plan.added),
            "given_back": self.given_back,
            "secrets_as_before": self.unread,
            "stay": {
                step.found.name: step.why for step in self.plan.steps if step.fate not in ("added", "present")
            },
        }


def install(parsed: argparse.Namespace) -> None:
    """Shows how the clients' files would change, asks, and writes them.

    Raises:
        UsageError: No client is named, or one that has no file in projects, or the options contradict each other.
        ConfigError: A file cannot be used, or nobody is there to be asked.
    """
    project = None if parsed.project is None else parsed.project.expanduser().resolve()
    launch = _launch(parsed)
    names = _wanted(parsed, project)
    if parsed.print and parsed.uninstall:
        raise UsageError("--print shows what is written into a file: give --print or --uninstall.")
    if parsed.print:
        sys.stdout.writelines(_snippet(CLIENTS[name], CLIENTS[name].file(project), launch) for name in names)
        return
    target = OwnFile(parsed.config)
    plan = Plan()
    if parsed.take_over and not parsed.uninstall:
        place: Place = parsed.secrets or "environment"
        planned = _planner(_servers_in(names, project), target, place, parsed)
        plan = planned(secrets=place)
        if plan.secrets and parsed.secrets is None:
            if parsed.yes:
                # Out of the client's file they go: only the copy of the old one would have them.
                moved = [
                    f"{name} of {step.found.name}"
                    for name, step in plan.needed.items()
                    if name not in plan.inputs
                ]
                raise UsageError(
                    f"--take-over moves secrets out of the clients' files ({', '.join(moved)}): say where with "
                    "--secrets keyring, or with --secrets environment, where these variables are set."
                )
            if asks() and not parsed.json:
                place = place_for(plan.secrets)
        plan = planned(secrets=place, environment=os.environ)
    steps = [_step(name, project, launch, target, plan, uninstall=parsed.uninstall) for name in names]
    changed = [step for step in steps if step.file.changed]
    paint = Painter(sys.stdout)
    if not parsed.json:
        sys.stdout.writelines(
            _install_text(step, target.path, paint, uninstall=parsed.uninstall) for step in steps
        )
    if changed and not _confirmed(
        parsed, f"Write {counted(len(changed), 'file')}?", "--print to see the entry"
    ):
        return
    if plan.added:
        # First in, then out: a crash between the two leaves both.
        add_servers(target, plan)
    report, left = list[dict[str, Any]](), set[str]()
    for step in steps:
        if step.file.changed and not parsed.uninstall:
            record = [
                _before_us(step.file, step.key),
                step.file.text,
                str(step.file.path),
                _secrets_made(step.file) | plan.moved,
            ]
            seal(_record_of(step.file), json.dumps(record).encode())
        copy = step.file.write() if step.file.changed else None
        if parsed.uninstall:
            left |= _secrets_made(step.file).keys()
            forget(_record_of(step.file))
        report.append(step.as_json(copy, written=step.file.changed))
        if not parsed.json:
            sys.stdout.write(_done(step, copy, paint, uninstall=parsed.uninstall))
    if parsed.json:
        write_json({"clients": report})
    else:
        tell_unused(left, target)
    _look(target, plan)


def is_ours(entry: object) -> bool:
    """Says whether a member of a client's servers starts Cellblock, in that client's own form."""
    if not is_object(entry):
        return False
    command = entry.get("command", entry.get("cmd"))
    if is_array(command):
        return runs_cellblock({"args": command})
    return runs_cellblock({**entry, "command": command, "url": entry.get("url", entry.get("uri", ""))})


# ---- inside ------------------------------------------------------------------------------------------


def _launch(parsed: argparse.Namespace) -> Launch:
    """Returns what the client is to start: a daemon's stdio end, or a broker of its own for a file of its own."""
    config = None if parsed.config is None else real_path(Path(parsed.config))
    command, *first = own_command()
    via = parsed.via or ("connect" if config is None else "stdio")
    words = ["connect"] if via == "connect" else ["serve", "--stdio"]
    named = [] if config is None else ["--config", str(config)]
    return Launch(command, (*first, *words, *named))


def _wanted(parsed: argparse.Namespace, project: Path | None) -> list[str]:
    named: list[str] = list(dict.fromkeys(parsed.clients))
    if parsed.all_detected:
        named += [
            name
            for name, client in CLIENTS.items()
            if client.detected and name not in named and client.file(project) is not None
        ]
        if not named:
            raise UsageError(f"No client was found on this machine; name one of {', '.join(CLIENTS)}.")
    if not named:
        raise UsageError(f"Name a client, one of {', '.join(CLIENTS)}; or give --all-detected.")
    for name in named:
        if CLIENTS[name].file(project) is None:
            raise UsageError(f"{CLIENTS[name].title} has no file in projects; leave out --project.")
    return named


def _step(
    name: str, project: Path | None, launch: Launch, target: OwnFile, plan: Plan, *, uninstall: bool
) -> Step:
    path = CLIENTS[name].file(project)
    assert path is not None  # checked by _wanted
    file = ConfigFile(path)
    if file.path == target.path:
        raise ConfigError(f"{file.path} is a client's own file.", hint="Give --config with another one.")
    step = Step(name, file, CLIENTS[name].key(file.data), plan.of_file(file.path), [], [])
    changes = _without_us(step) if uninstall else _with_us(step, launch)
    if changes:
        file.change(changes)
    return step


def _without_us(step: Step) -> dict[KeyPath, Any]:
    """Sets a client's file to what it would say without Cellblock, and notes in the step what is given back. Returns
    the changes that put the secrets of now into that."""
    file, above = step.file, step.key[:-1]
    present = value_at(file.data, step.key)
    if present is not None and not is_ours(present):
        raise ConfigError(
            f"{'.'.join(step.key)} in {file.path} does not start Cellblock.", hint="Remove it by hand."
        )
    file.text = _before_us(file, step.key)
    servers = value_at(read(file.text, format_of(file.path.name)), above)
    there = value_at(file.data, above)
    before = {
        name: entry
        for name, entry in (servers.items() if is_object(servers) else ())
        if not is_object(there) or name not in there
    }
    step.given_back += before
    changes: dict[KeyPath, Any] = {}
    for name, entry in _with_secrets_of_now(before, _secrets_made(file), step.unread).items():
        for member, value in entry.items() if is_object(entry) else ():
            if value != before[name][member]:
                changes[(*above, name, member)] = value
    return changes


def _with_us(step: Step, launch: Launch) -> dict[KeyPath, Any]:
    """Returns the changes that have the client start Cellblock, in the place of the servers that are taken over."""
    file, client = step.file, CLIENTS[step.name]
    present = value_at(file.data, step.key)
    # opencode 2 would otherwise run the tool's script from a script of its own.
    outside = {"codemode": False} if step.key[:-1] != client.servers else {}
    entry = {**client.entry(launch), **outside}
    if is_object(present):
        if not is_ours(present):
            raise ConfigError(
                f"{'.'.join(step.key)} in {file.path} is another server.", hint="Give that one another name."
            )
        # What the user has set beside, such as variables, times, and which tools need no question, stays.
        stays = {key: value for key, value in present.items() if key not in _REACHED}
        entry |= stays | {key: entry[key] for key in _STARTED if key in entry}
    taken: dict[KeyPath, Any] = {
        tuple(map(str, one.found.path)): REMOVED
        for one in step.plan.steps
        if one.fate in ("added", "present")
    }
    return taken if entry == present else {step.key: entry, **taken}


def _secrets_made(file: ConfigFile) -> dict[str, str]:
    """Returns the secrets that were taken out of a client's file, as they were then, by their names here."""
    record = opened(_record_of(file))
    # Older records have three members.
    return {} if record is None else [*json.loads(record), {}][3]


def _with_secrets_of_now(entries: Any, made: Mapping[str, str], unread: list[str]) -> Any:
    """Returns a client's entries with the secrets as they are here now; `unread` takes the names of those that cannot
    be read."""
    for name, before in made.items():
        if mapped(entries, lambda text, before=before: text.replace(before, "")) == entries:
            continue
        now: str | None = None
        with contextlib.suppress(KeyringError):
            now = NamedSecrets().get(name)
        if now is None:
            unread.append(name)
        else:
            entries = mapped(entries, lambda text, before=before, now=now: text.replace(before, now))
    return entries


def _record_of(file: ConfigFile) -> str:
    """Names what is known of a client's file: what it would say without Cellblock, what was written last,
    its path, and the secrets that were taken out."""
    return f"0-{hashlib.sha256(str(file.path).encode()).hexdigest()[:32]}"


def _before_us(file: ConfigFile, key: KeyPath) -> str:
    """Returns what a client's file would say without Cellblock. Raises ConfigError, and KeyringError."""
    record = opened(_record_of(file))
    return file.without(key, None if record is None else json.loads(record))


def _servers_in(names: Sequence[str], project: Path | None) -> list[Found]:
    """Returns the servers of the clients' files that are to be changed."""
    files = {real_path(file) for name in names if (file := CLIENTS[name].file(project)) is not None}
    return [one for one in find_servers(names, project).servers if real_path(one.file) in files]


def _planner(
    found: Sequence[Found], target: OwnFile, place: Place, parsed: argparse.Namespace
) -> Callable[..., Plan]:
    """Returns `make_plan` for the servers that are wanted, of all files together: of those with one name the first is
    taken, and the others stay. A person is asked about each new one that a project's file has."""
    planned = partial(make_plan, present=target.servers, kept=NamedSecrets().get)
    is_asked = not parsed.yes and not parsed.json and not vars(parsed).get("dry_run") and asks()
    declined: list[Found] = []
    for step in planned(found, secrets=place).steps if is_asked else ():
        if step.fate == "added" and step.of_project:
            name = dotted([step.found.name])
            print(f"{name}, from {step.source}", *entry_lines(step, Painter(sys.stdout)), sep="\n")
            if not agreed(f"Take {name} over?"):
                declined.append(step.found)
    return partial(planned, [one for one in found if one not in declined])


def _snippet(client: Client, file: Path | None, launch: Launch) -> str:
    assert file is not None  # checked by _wanted
    form = format_of(file.name)
    entry = edited("", form, {(*client.servers, NAME): client.entry(launch)})
    return f"{'//' if form == 'json' else '#'} {client.title}: {shown_path(file)}\n{entry}"


def _install_text(step: Step, target: Path, paint: Painter, *, uninstall: bool) -> str:
    shown = shown_path(step.file.path)
    if not step.file.changed:
        how = "has no Cellblock" if uninstall else "is as it should be"
        return f"{paint(CLIENTS[step.name].title, 'bold')}: {shown} {how}.\n"
    lines = [paint(f"{CLIENTS[step.name].title}: {shown}", "bold")]
    for line in step.file.difference(shown)[2:]:
        style = _DIFFERENCE_SIGNS.get(line[:1])
        line = spelled_line(line)
        lines.append(f"  {paint(line, style) if style else line}")
    for one in step.plan.steps:
        name = dotted([one.found.name])
        lines += [f"  {name}: restricted as there: {spelled_out(told)}" for told in one.restrictions]
        if one.left:
            lines.append(f"  {name}: not carried over: {spelled_out(', '.join(one.left))}")
        fate = {"added": "is taken over", "present": "is there already"}.get(one.fate, f"stays: {one.why}")
        lines.append(f"  {name}: {spelled_out(fate)} ({shown_path(target)})")
        if one.fate == "added":
            lines += entry_lines(one, paint)
    lines += [
        *(
            f"  {dotted([name])}: is given back; Cellblock has it, too, until `cellblock remove`"
            for name in step.given_back
        ),
        *(f"  {name} cannot be read here: it is given back as it was" for name in step.unread),
        *(
            f"  {paint(name, 'cyan')} is to be set in the environment of Cellblock"
            for name in step.plan.needed
        ),
    ]
    return "\n".join(lines) + "\n"


def _confirmed(parsed: argparse.Namespace, question: str, otherwise: str) -> bool:
    """Asks, unless --yes says it. Raises ConfigError: Nobody is there to be asked; `otherwise` shows what would be."""
    if parsed.yes:
        return True
    if parsed.json or not asks():
        raise ConfigError(
            "Nothing was written: nobody is there to be asked.", hint=f"Add --yes, or {otherwise}."
        )
    if agreed(question):
        return True
    sys.stdout.write("Nothing was written.\n")
    return False


def _done(step: Step, copy: Path | None, paint: Painter, *, uninstall: bool) -> str:
    if not step.file.changed:
        return ""
    lines = [f"{paint('Written', 'green')}: {shown_path(step.file.path)}"]
    if copy is not None:
        lines.append(f"The old file is {shown_path(copy)}")
    if not uninstall:
        lines.append(CLIENTS[step.name].next_step)
    return "\n".join(lines) + "\n"


_FATE_SIGNS: Final = {
    "added": ("+", "green"),
    "present": ("=", "dim"),
    "conflict": ("!", "yellow"),
    "itself": ("-", "dim"),
    "unusable": ("!", "yellow"),
}


def import_servers(parsed: argparse.Namespace) -> None:
    """Finds the servers, shows what would be done, asks, and writes the file.

    Raises:
        ConfigError: The file cannot be used, or nobody is there to be asked.
    """
    target = OwnFile(parsed.config)
    project = None if parsed.project is None else parsed.project.expanduser().resolve()
    search = find_servers(parsed.clients or CLIENT_NAMES, project)
    if target.path in (*search.files, *search.unreadable):
        raise ConfigError(f"{target.path} is a client's own file.", hint="Give --config with another one.")
    place: Place = "file" if parsed.copy_secrets else parsed.secrets or "environment"
    planned = _planner(search.servers, target, place, parsed)
    plan = planned(secrets=place)
    paint = Painter(sys.stdout)
    if not parsed.json:
        sys.stdout.write(_import_text(search, plan, target.path, paint))
    copy, written = None, False
    if plan.added and not parsed.dry_run:
        if not _confirmed(
            parsed, f"Write {counted(len(plan.added), 'server')} to {target.path}?", "--dry-run"
        ):
            return
        if plan.secrets and not parsed.yes and not parsed.copy_secrets and parsed.secrets is None:
            plan = planned(secrets=place_for(plan.secrets))
        copy, written = add_servers(target, plan), True
    if parsed.json:
        write_json(
            {
                "config": str(target.path),
                "files": {str(file): count for file, count in search.files.items()},
                "unreadable": {str(file): why for file, why in search.unreadable.items()},
                "servers": [step.as_json() for step in plan.steps],
                "variables": list(plan.needed),
                "keyring": list(plan.values),
                "written": written,
                "backup": None if copy is None else str(copy),
            }
        )
    elif written:
        sys.stdout.write(_what_next(plan, target.path, copy, paint))
    if written:
        _look(target, plan)


def _look(target: OwnFile, plan: Plan) -> None:
    if plan.added:
        sys.stdout.flush()
        asyncio.run(first_look(load_settings(target.path), plan.added))


def place_for(secrets: int) -> Place:
    """Asks where secrets are to go, where no option says so."""
    if agreed(f"Keep the {secrets} secrets {NamedSecrets().place}?"):
        return "keyring"
    if agreed(f"Copy the {secrets} secrets into the file, too? Otherwise set variables for them."):
        return "file"
    return "environment"


def _import_text(search: Search, plan: Plan, target: Path, paint: Painter) -> str:
    lines = [
        paint("Found", "bold"),
        *(f"  {shown_path(file)}: {counted(count, 'server')}" for file, count in search.files.items()),
        *(
            f"  {shown_path(file)}: {paint('not read', 'yellow')}: {spelled_out(why)}"
            for file, why in search.unreadable.items()
        ),
    ]
    if not search.files and not search.unreadable:
        lines.append("  no file of any client")
    if plan.steps:
        lines += ["", paint(f"Into {target}", "bold")]
    for step in plan.steps:
        sign, style = _FATE_SIGNS[step.fate]
        name = dotted([step.found.name])
        why = f"; {spelled_out(step.why)}" if step.why else ""
        lines.append(f"  {paint(f'{sign} {name}', style)}  {dotted([step.reached])}, from {step.source}{why}")
        lines += entry_lines(step, paint) if step.fate == "added" else ()
        lines += [f"      restricted as there: {spelled_out(told)}" for told in step.restrictions]
        if step.left:
            lines.append(f"      {paint('not carried over', 'yellow')}: {spelled_out(', '.join(step.left))}")
    if plan.values:
        lines += [
            "",
            paint("Into the keyring", "bold"),
            *(f"  {paint(name, 'cyan')}" for name in plan.values),
        ]
    if plan.needed:
        lines += [
            "",
            paint("To be set in the environment of Cellblock", "bold"),
            *(
                f"  {paint(name, 'cyan')}{' (is set here)' if name in os.environ else ''}  its value is in "
                f"{step.source}, {dotted(step.found.path)}"
                for name, step in plan.needed.items()
            ),
        ]
    if not plan.added:
        lines += ["", "Nothing to import."]
    return "\n".join(lines) + "\n"


def _what_next(plan: Plan, target: Path, copy: Path | None, paint: Painter) -> str:
    lines = ["", f"{paint('Written', 'green')}: {target}"]
    if copy is not None:
        lines.append(f"The old file is {copy}")
    if plan.needed:
        lines.append(
            "Until the variables above are set, their servers are not started; `cellblock config check` says which."
        )
    lines.append(f"Next: cellblock doctor --config {target}")
    return "\n".join(lines) + "\n"
