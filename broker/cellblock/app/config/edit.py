"""Edit changes single entries of a configuration file and leaves every other character, comments among them, as it is.

JSON is edited in its text; TOML and YAML by libraries that keep the style. What comes out is read again, and taken only
when it says what was wanted and nothing else.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from cellblock.app.config.formats import value_at
from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.settings.syntax import (
    TOML_SUFFIX,
    Positions,
    SyntaxFault,
    blank_comments,
    find_positions,
    parse,
    without_comments,
)

Format = Literal["json", "toml", "yaml"]
"""Names the formats of configuration files; `json` may have comments and last commas."""

KeyPath = tuple[str, ...]

REMOVED: Final = object()
"""Stands for the value of a key that is to go."""

_NEWLINE: Final = re.compile(r"\r?\n")
_INDENTED: Final = re.compile(r"^([ \t]+)\S", re.M)
_REST_OF_LINE: Final = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/[ \t]*)?(?=\r?\n)")
_COMMA: Final = re.compile(r"\s*,")


class EditFault(Exception):
    """Tells that a text cannot be edited without a change to something else; the message says why."""


def format_of(name: str) -> Format:
    name = name.lower()
    return "toml" if name.endswith(TOML_SUFFIX) else "yaml" if name.endswith((".yaml", ".yml")) else "json"


def read(text: str, form: Format) -> Any:
    """Returns the data that a text says; None of an empty one.

    Raises:
        SyntaxFault: It is not valid JSON or TOML.
        EditFault: It is not valid YAML.
    """
    if not (without_comments(text) if form == "json" else text).strip():
        return None
    if form != "yaml":
        return parse(text, toml=form == "toml")
    # Only where a YAML file is read or written.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        reader: Any = YAML(typ="safe", pure=True)
        return reader.load(text)
    except (YAMLError, ValueError) as error:
        raise EditFault(f"It is no valid YAML: {str(error).splitlines()[0]}.") from None


def edited(text: str, form: Format, changes: Mapping[KeyPath, Any]) -> str:
    """Returns the text with each of the paths set to its value, or taken out where that is `REMOVED`.

    Objects on the way to a new value are made. A path that is not there needs no removing.

    Args:
        text: The whole file; it may be empty.
        form: What it is written in.
        changes: The new values by their keys from the top.

    Raises:
        SyntaxFault: The text is not valid.
        EditFault: It is not possible; a value on the way is no object, or the text repeats a key.
    """
    before = read(text, form)
    if not is_object(before if before is not None else {}):
        raise EditFault("The file holds no object.")
    wanted = json.loads(json.dumps(before or {}, default=str))
    for path, value in changes.items():
        _change(wanted, path, value)
    if form == "json":
        after = text
        for path, value in changes.items():
            after = _json_edit(after, path, value)
    else:
        try:
            after = (_toml_edit if form == "toml" else _yaml_edit)(text, changes)
        except (ValueError, TypeError, KeyError) as error:
            # What the libraries do not write, such as a table within an inline table.
            raise EditFault(f"The file is written in a way that cannot be edited safely: {error}.") from None
    try:
        said = json.loads(json.dumps(read(after, form) or {}, default=str))
    except (SyntaxFault, EditFault):
        said = None
    if said is None or _without_empty(said, changes) != _without_empty(wanted, changes):
        raise EditFault("The file is written in a way that cannot be edited safely.")
    return after


def given_back(old: str, new: str, now: str, form: Format, ours: KeyPath) -> str:
    """Returns a text as if it had never been changed from `old` to `new`: with what somebody has made of `new` since.

    Where both have changed the same lines, what `new` has lost is written anew.

    Args:
        old: The whole file before the change.
        new: The file after it; the change has taken members out, and put in the one at `ours`.
        now: The file as it is.
        form: What all are written in.
        ours: The path that is to go.

    Raises:
        SyntaxFault, EditFault: As `edited` does.
    """
    if now == new:
        return old
    before, after, data = (_object(text, form) for text in (old, new, now))
    gone = ours
    # What was made for it alone goes with it.
    while len(gone) > 1 and value_at(before, gone[:-1]) is None:
        owner = value_at(data, gone[:-1])
        if not is_object(owner) or owner.keys() - {gone[-1]}:
            break
        gone = gone[:-1]
    lost = _lost(before, after, ())
    changes = {path: value for path, value in lost if value_at(data, path) is None} | {gone: REMOVED}
    keyed = edited(now, form, changes)
    merged = _merged(new, old, now)
    with contextlib.suppress(SyntaxFault, EditFault):
        said, wanted = (_without_empty(_object(text, form), changes) for text in (merged or "", keyed))
        return merged if merged and said == wanted else keyed
    return keyed


# ---- inside ------------------------------------------------------------------------------------------


def _object(text: str, form: Format) -> dict[str, Any]:
    return read(text, form) or {}


def _lost(
    before: Mapping[str, Any], after: Mapping[str, Any], above: KeyPath
) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in before.items():
        if key not in after:
            yield (*above, key), value
        elif is_object(value) and is_object(after[key]):
            yield from _lost(value, after[key], (*above, key))


def _merged(base: str, one: str, other: str) -> str | None:
    """Returns a text with both changes, line by line; None where they touch the same lines. What both have put in at
    one place comes in this order."""
    lines = base.splitlines(keepends=True)
    # A change that both have made is one.
    changes = {
        (start, end, "".join(after[first:last])): None
        for after in (one.splitlines(keepends=True), other.splitlines(keepends=True))
        for kind, start, end, first, last in SequenceMatcher(None, lines, after).get_opcodes()
        if kind != "equal"
    }
    made, at = "", 0
    for start, end, text in sorted(changes, key=lambda change: change[:2]):
        if start < at:
            return None
        made += "".join(lines[at:start]) + text
        at = end
    return made + "".join(lines[at:])


def _change(
    data: dict[str, Any], path: KeyPath, value: Any, make: Callable[[], dict[str, Any]] = dict[str, Any]
) -> None:
    """Sets what stands at a path, or takes it out; `make` makes the objects on the way that are not there."""
    for step, key in enumerate(path[:-1]):
        if key not in data:
            if value is REMOVED:
                return
            data[key] = make()
        data = data[key]
        if not is_object(data):
            raise EditFault(f"{'.'.join(path[: step + 1])} is no object.")
    if value is REMOVED:
        data.pop(path[-1], None)
    else:
        data[path[-1]] = value


def _without_empty(data: dict[str, Any], changes: Mapping[KeyPath, Any]) -> dict[str, Any]:
    """Returns data without what a removal has left empty: TOML does not write a table that only had tables."""
    for path, value in changes.items():
        for end in range(len(path) - 1, 0, -1) if value is REMOVED else ():
            owner = value_at(data, path[: end - 1])
            if is_object(owner) and owner.get(path[end - 1]) == {}:
                del owner[path[end - 1]]
    return data


def _json_edit(text: str, path: KeyPath, value: Any) -> str:
    if not without_comments(text).strip():
        text += "{}\n"
    found = find_positions(text, toml=False)
    if found.duplicates:
        raise EditFault(f"The key {json.dumps(found.duplicates[0][0][-1])} stands twice in one object.")
    if value is REMOVED:
        return _json_without(text, found, path) if path in found.keys else text
    if path in found.values:
        start = found.values[path]
        margin = _margin(text, found.keys[path])
        return text[:start] + _written(text, value, margin) + text[_end(text, start) :]
    depth = max(n for n in range(len(path)) if path[:n] in found.values)
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _json_with(text, found, path[:depth], path[depth], value)


def _json_with(text: str, found: Positions, owner: KeyPath, key: str, value: Any) -> str:
    """Returns the text with a further member at the end of an object."""
    start = found.values[owner]
    close = _end(text, start) - 1
    name = f"{json.dumps(key, ensure_ascii=False)}: "
    line = "\r\n" if "\r\n" in text else "\n"
    members = [path for path in found.keys if path[:-1] == owner and path != owner]
    if not members:
        outer = _margin(text, start)
        margin = outer + _unit(text)
        inside = text[start + 1 : close].rstrip(" \t\r\n")
        member = f"{line}{margin}{name}{_written(text, value, margin)}{line}{outer}"
        return f"{text[: start + 1]}{inside}{member}{text[close:]}"
    last = max(members, key=found.keys.__getitem__)
    at = found.keys[last]
    end = _end(text, found.values[last])
    comma = blank_comments(text)[end:close].find(",")
    if not _NEWLINE.search(text[start:at]):
        member = f"{name}{json.dumps(value, ensure_ascii=False)}"
        return f"{text[:end]}, {member}{text[end if comma < 0 else end + comma + 1 :]}"
    margin = _margin(text, at)
    member = f"{line}{margin}{name}{_written(text, value, margin)}"
    if comma < 0:
        text, behind = f"{text[:end]},{text[end:]}", end + 1
    else:
        behind = end + comma + 1
    # A comment behind the last member is about that one.
    rest = _REST_OF_LINE.match(text, behind)
    behind = rest.end() if rest else behind
    return text[:behind] + member + text[behind:]


def _json_without(text: str, found: Positions, path: KeyPath) -> str:
    """Returns the text without a member, its comma, and its line where that is then empty."""
    start, end = found.keys[path], _end(text, found.values[path])
    plain = blank_comments(text)
    if comma := _COMMA.match(plain, end):
        end = comma.end()
    elif (before := plain[:start].rstrip()).endswith(","):
        # What was the last but one is now the last.
        at = len(before) - 1
        text, start, end = text[:at] + text[at + 1 :], start - 1, end - 1
    begin = text.rfind("\n", 0, start) + 1
    rest = _REST_OF_LINE.match(text, end)
    if rest is not None and not text[begin:start].strip():
        return text[:begin] + text[rest.end() :].removeprefix("\r").removeprefix("\n")
    head, tail = text[:start], text[end:].lstrip(" \t")
    return (head.rstrip(" \t") if tail[:1] == "}" else head) + tail


def _end(text: str, start: int) -> int:
    return json.JSONDecoder().raw_decode(without_comments(text), start)[1]


def _margin(text: str, offset: int) -> str:
    """Returns the white space at the beginning of the line that a character is in."""
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    found = _INDENTED.search(text)
    return found[1] if found else "  "


def _written(text: str, value: Any, margin: str) -> str:
    unit = _unit(text)
    lines = json.dumps(value, ensure_ascii=False, indent="\t" if "\t" in unit else len(unit)).split("\n")
    return f"{chr(13) if chr(13) in text else ''}\n{margin}".join(lines)


def _toml_edit(text: str, changes: Mapping[KeyPath, Any]) -> str:
    # Only where a TOML file is written.
    import tomlkit
    from tomlkit.items import AbstractTable

    document = tomlkit.parse(text)
    for path, value in changes.items():
        if is_object(value) and not isinstance(value_at(document, path), AbstractTable):
            value = tomlkit.item(value)
        _change(document, path, value, partial(tomlkit.table, is_super_table=True))
    return tomlkit.dumps(document)


_YAML_INDENTS: Final = ((2, 2, 0), (2, 4, 2), (4, 4, 0), (4, 6, 4), (4, 4, 2))
"""Names ways to indent YAML: mappings, sequences, and the dash in them."""


def _yaml_edit(text: str, changes: Mapping[KeyPath, Any]) -> str:
    from ruamel.yaml import YAML

    yaml: Any = YAML()
    yaml.preserve_quotes = True
    yaml.width = 2**20
    document = yaml.load(text)
    for mapping, sequence, offset in _YAML_INDENTS:
        yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
        if _dumped(yaml, document) == text:
            break
    else:
        if document is not None:
            raise EditFault("Its layout could not be kept: some line is laid out in a way of its own.")
        yaml.indent(*_YAML_INDENTS[0])
    changed: dict[str, Any] = {} if document is None else document
    for path, value in changes.items():
        _change(changed, path, value)
    return _dumped(yaml, changed)


def _dumped(yaml: Any, document: Any) -> str:
    into = io.StringIO()
    yaml.dump(document, into)
    return into.getvalue()


MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""Bounds a configuration file of a client: that of Claude Code also keeps histories."""


class UnreadableFile(ConfigError):
    """Tells that a configuration file cannot be read; `why` is the reason without the file's name."""

    def __init__(self, path: Path, why: str, hint: str) -> None:
        super().__init__(f"{path} cannot be read: {why}.", hint=hint)
        self.why: Final = why


def text_of(path: Path) -> str | None:
    """Returns the text of a file with its line ends as they are, or None where there is no file.

    Raises:
        UnreadableFile: It cannot be read, is no regular file, too long, or no UTF-8 text.
    """
    try:
        # Not to wait for a pipe that has the name.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            what = "it is a directory" if stat.S_ISDIR(mode) else "it is no file"
            raise UnreadableFile(path, what, "Move it away, or name another one.")
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UnreadableFile(path, error.strerror or str(error), "See whose file it is.") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UnreadableFile(path, f"it is over {MAX_FILE_BYTES} bytes", "Edit it by hand.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableFile(path, "it is no UTF-8 text", "Edit it by hand.") from None


def object_in(path: Path, text: str, form: Format) -> dict[str, Any]:
    """Returns the object that a file's text says; an empty one of an empty text.

    Raises:
        UnreadableFile: It is not valid, or no object.
    """
    try:
        data = read(text, form)
    except SyntaxFault as error:
        raise UnreadableFile(
            path,
            f"line {error.position.line}, column {error.position.column}: {error.message}",
            "Mend it, then try again.",
        ) from None
    except EditFault as error:
        raise UnreadableFile(path, str(error).removesuffix("."), "Mend it first.") from None
    if data is not None and not is_object(data):
        raise UnreadableFile(path, "it holds no object", "Mend it, then try again.")
    return data or {}
