"""Replaces references in the strings of a configuration: `${env:NAME}`, `${NAME:-default}`, `${file:/path}`,
`${keyring:NAME}`, and what VS Code and Cursor know. What they stand for is a secret from then on, wherever it is
quoted.

In MCP clients' own files their references are read as ours (`translated`); all else there is text, also where it looks
like a reference of ours: such a file may be a stranger's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cellblock.base.errors import CellblockError
from cellblock.base.json import is_array, is_object
from cellblock.base.secret_values import ORDINARY
from cellblock.base.settings.problems import Problem, dotted
from cellblock.base.settings.syntax import Path as KeyPath

MAX_FILE_BYTES: Final = 64 * 1024
"""Caps a file that a reference names; a private key has 4 KiB."""

EDITOR_FOLDERS: Final = (".vscode", ".cursor")
"""Names folders whose parent is an editor's `${workspaceFolder}`."""

_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-(.*))?", re.S)
_KIND: Final = re.compile(r"[A-Za-z]+:")

_KNOWN: Final = (
    "Use ${env:NAME}, ${NAME:-default}, ${file:/path} or ${keyring:NAME}; $${…} stands for itself."
)

WHERE_STARTED: Final = "where Cellblock is started"
"""Says in hints where a variable is to be set."""


class _Unresolved(Exception):
    """Tells that a reference stands for nothing; `why` has no full stop. What is `unknown` cannot stand for anything,
    wherever Cellblock is started."""

    def __init__(self, why: str, hint: str, *, unknown: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint
        self.unknown = unknown


@dataclass(slots=True)
class Resolver:
    """Puts values in place of references.

    Args:
        file: The configuration file; paths are relative to its folder. None: relative to the working directory.
        inputs: VS Code's `inputs` by their ids.
        environment: Variables.

    `problems` are references that nobody can look up, `missing` those that stand for nothing here and now, each with
    why; `secrets` are the values put in, and `files` the files that were read.
    """

    file: Path | None
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    problems: list[Problem] = field(default_factory=list[Problem])
    missing: list[tuple[Problem, str]] = field(default_factory=list[tuple[Problem, str]])
    secrets: set[str] = field(default_factory=set[str])
    files: list[Path] = field(default_factory=list[Path])
    origin: str = ""
    """Says where what is resolved goes, as `origin_of` does."""
    _keyring_fault: CellblockError | None = None

    @property
    def faults(self) -> list[Problem]:
        """Returns all references that were left as they stood."""
        return [*self.problems, *(problem for problem, _ in self.missing)]

    def resolve(self, value: Any, path: KeyPath) -> Any:
        """Returns JSON data with every string resolved; keys are left alone."""
        if isinstance(value, str):
            return self._text(value, path) if "${" in value else value
        if is_array(value):
            return [self.resolve(item, (*path, index)) for index, item in enumerate(value)]
        if is_object(value):
            return {key: self.resolve(item, (*path, key)) for key, item in value.items()}
        return value

    def variables(self, name: str, path: KeyPath) -> dict[str, str]:
        """Returns the variables of an `envFile`; none, and a word in `missing`, when it cannot be read."""
        try:
            return variables_of(self._content(name))
        except _Unresolved as error:
            self.missing.append((Problem(path, error.why, error.hint), error.why))
        except ValueError as error:
            why = f"{name}: {error}"
            self.missing.append((Problem(path, why, "Correct the file."), why))
        return {}

    # ---- inside --------------------------------------------------------------------------------------

    def _text(self, text: str, path: KeyPath) -> str:
        def put_in(found: re.Match[str]) -> str:
            if found[1]:
                return found[0][1:]
            try:
                value = self._value(found[2])
            except _Unresolved as error:
                problem = Problem(path, f"{found[0]}: {error.why}", error.hint)
                if error.unknown:
                    self.problems.append(problem)
                else:
                    self.missing.append((problem, error.why))
                return found[0]
            return found[0] if value is None else value

        return _REFERENCE.sub(put_in, text)

    def _value(self, inner: str) -> str | None:
        """Returns what a reference stands for; None when it is none."""
        match inner.split(":", 1):
            case ["file", name]:
                return self._secret(self._content(name.strip()))
            case ["keyring", name]:
                return self._secret(self._kept(name))
            case ["input", name]:
                return self._input(name)
            case ["secret", _]:
                # Each principal has a value of its own: it is put in with each request.
                return None
            case _:
                pass
        if (own := self._of_editor(inner)) is not None:
            return own
        found = _VARIABLE.fullmatch(inner)
        if found is None:
            if _KIND.match(inner):
                raise _Unresolved("this is nothing that Cellblock can look up", _KNOWN, unknown=True)
            return None
        name, default = found[1], found[3]
        value = self.environment.get(name)
        if found[2] and not value:
            return default
        if value is None:
            raise _Unresolved(
                f"the environment variable {name} is not set",
                f"Set {name} {WHERE_STARTED}, or write ${{{name}:-default}}.",
            )
        return value if name in ORDINARY else self._secret(value)

    def _secret(self, value: str) -> str:
        if value:
            self.secrets.add(value)
        return value

    def _content(self, name: str) -> str:
        file = Path(name).expanduser()
        if not file.is_absolute() and self.file is not None:
            file = self.file.parent / file
        try:
            # Not a fifo or a device: those would be waited for, or have no end.
            if file.exists() and not file.is_file():
                raise _Unresolved(f"{file} is no regular file", "Name a file with the secret in it.")
            with file.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            text = data.decode("utf-8")
        except OSError as error:
            # It is looked at again once it is there.
            self.files.append(file)
            raise _Unresolved(
                f"{file} cannot be read: {error.strerror}", "Make the file, or name another."
            ) from None
        except UnicodeDecodeError:
            raise _Unresolved(f"{file} is no UTF-8 text", "Name a text file.") from None
        if len(data) > MAX_FILE_BYTES:
            raise _Unresolved(f"{file} is over {MAX_FILE_BYTES} bytes", "Name a file with the secret alone.")
        self.files.append(file)
        return text.removesuffix("\n").removesuffix("\r")

    def _kept(self, name: str) -> str:
        # Only where a reference names it: a keyring takes long to be found.
        from cellblock.app.config.named_secrets import NAME, NAME_RULE, NamedSecrets, bound, mark_of
        from cellblock.base.keyrings import KEYRING_SECONDS, KeyringError

        if NAME.fullmatch(name) is None:
            raise _Unresolved("this is no name of a secret", NAME_RULE, unknown=True)
        self.files.append(mark_of(name))
        value: str | None = None
        if self._keyring_fault is None:
            try:
                if (origins := bound().get(name)) is not None and self.origin not in origins:
                    raise _Unresolved(
                        f"it was given for {' and '.join(origins)}, and this is {self.origin or 'none'}",
                        f"If you agree, run: cellblock secret set {name}, or `cellblock add --replace` with it.",
                    )
                value = NamedSecrets(KEYRING_SECONDS).get(name)
            except KeyringError as error:
                self._keyring_fault = error
        if self._keyring_fault is not None:
            message = self._keyring_fault.message.removesuffix(".")
            raise _Unresolved(message[0].lower() + message[1:], self._keyring_fault.hint)
        if value is None:
            raise _Unresolved(f"there is no secret {name}", f"Run: cellblock secret set {name}.")
        return value

    def _input(self, wanted: str) -> str:
        name = input_variable(wanted)
        value = self.environment.get(name)
        if value is not None:
            return self._secret(value)
        asked_for = self.inputs.get(wanted)
        default = asked_for.get("default") if is_object(asked_for) else None
        if isinstance(default, str):
            return default
        raise _Unresolved(
            "an editor asks for it, and Cellblock has nobody to ask",
            f"Set the environment variable {name} {WHERE_STARTED}.",
        )

    def _of_editor(self, inner: str) -> str | None:
        if inner == "userHome":
            return str(Path.home())
        if inner in ("pathSeparator", "/"):
            return os.sep
        if inner not in ("workspaceFolder", "workspaceFolderBasename"):
            return None
        file = Path() if self.file is None else self.file.absolute()
        if file.parent.name not in EDITOR_FOLDERS and file.name != ".mcp.json":
            raise _Unresolved("this file belongs to no workspace", "Write the folder itself.")
        folder = file.parent.parent if file.parent.name in EDITOR_FOLDERS else file.parent
        return str(folder) if inner == "workspaceFolder" else folder.name


def input_variable(wanted: str) -> str:
    """Returns the environment variable that stands for an input of VS Code: `github-token` is `GITHUB_TOKEN`."""
    return re.sub(r"[^A-Z0-9]+", "_", wanted.upper()).strip("_") or "INPUT"


def origin_of(entry: Mapping[str, Any]) -> str:
    """Returns where what an entry refers to goes: the origin of its URL, or its command and arguments."""
    if isinstance(url := entry.get("url"), str):
        scheme, _, rest = url.partition("://")
        return f"{scheme}://{re.split(r'[/?#]', rest, maxsplit=1)[0].rpartition('@')[2]}".lower()
    words = json.dumps([entry.get("command"), entry.get("args", [])])
    # What is no reference there may be a secret.
    return f"command {hashlib.sha256(words.encode()).hexdigest()[:16]}"


def references_in(text: str) -> list[str]:
    """Returns the references of a text, each once."""
    return list(dict.fromkeys(one[0] for one in _REFERENCE.finditer(text) if not one[1]))


def names_in(text: str, kind: str) -> list[str]:
    """Returns the names that a text refers to with references of one kind, such as `keyring`."""
    beginning = f"${{{kind}:"
    return [one[len(beginning) : -1] for one in references_in(text) if one.startswith(beginning)]


def uses_in(data: object) -> dict[str, list[str]]:
    """Maps the secrets that a configuration refers to, to the places where it does."""
    uses: dict[str, list[str]] = {}
    for path, text in _texts(data, ()):
        for name in names_in(text, "keyring"):
            uses.setdefault(name, []).append(dotted(path))
    return uses


def _texts(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif is_array(value):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))
    elif is_object(value):
        for key, item in value.items():
            yield from _texts(item, (*path, key))


_NAME: Final = re.compile(r"(?:export\s+)?([A-Za-z_][\w.-]*)\s*")
_QUOTED: Final = re.compile(r"""(?:"((?:[^"\\]|\\.)*)"|'([^']*)')\s*(?:#.*)?""", re.S)
_COMMENT: Final = re.compile(r"\s#.*", re.S)
_ESCAPE: Final = re.compile(r"\\(.)", re.S)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}


def variables_of(text: str) -> dict[str, str]:
    """Returns the variables that a file's text sets; of one name the last.

    Raises:
        ValueError: A line is none; the message has its number and no more.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        before, sign, after = line.partition("=")
        name, value = _NAME.fullmatch(before), _value(after)
        if not sign or name is None or value is None:
            raise ValueError(f"line {number} is no NAME=value")
        found[name[1]] = value
    return found


def _value(text: str) -> str | None:
    """Returns the value behind a sign; None where a quote has no end."""
    plain = text.strip()
    if plain[:1] not in ('"', "'"):
        # A `#` within a word is no comment: secrets have them.
        return _COMMENT.sub("", text).strip()
    quoted = _QUOTED.fullmatch(plain)
    if quoted is None:
        return None
    if quoted[1] is None:
        return quoted[2]
    return _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), quoted[1])


_VARIABLE_NAME: Final = r"[A-Za-z_]\w*"
_EDITOR: Final = rf"env:{_VARIABLE_NAME}|userHome|workspaceFolder(?:Basename)?|pathSeparator|/"
_SHELL: Final = re.compile(rf"\$(?:\{{({_VARIABLE_NAME}(?::-[^{{}}]*)?)\}}|({_VARIABLE_NAME}))")

FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    "claude-code": re.compile(rf"\$\{{({_VARIABLE_NAME}(?::-[^{{}}]*)?)\}}"),
    "cursor": re.compile(rf"\$\{{({_EDITOR})\}}"),
    "vscode": re.compile(rf"\$\{{({_EDITOR}|input:[^{{}}]+)\}}"),
    "windsurf": re.compile(rf"\$\{{(env:{_VARIABLE_NAME})\}}"),
    "gemini": _SHELL,
    "goose": _SHELL,
    "opencode": re.compile(r"\{((?:env|file):[^{}]+)\}"),
}
"""Matches each client's references; what is between their braces is the same in ours. The others have none."""

_LOOKS_OURS: Final = re.compile(r"\$(?=\{[^{}]*\})")
_ESCAPED_REFERENCE: Final = re.compile(r"\$\$(?=\{[^{}]*\})")


def literal(text: str) -> str:
    """Escapes what looks like a reference of ours."""
    return _LOOKS_OURS.sub("$$", text)


def unescaped(text: str) -> str:
    """Returns what `literal` was given."""
    return _ESCAPED_REFERENCE.sub("$", text)


def variable(name: object, default: str = "") -> str:
    """Returns a reference to an environment variable that a client's file names; text where that is no name."""
    made = f"${{env:{name}{default}}}"
    return made if re.fullmatch(_VARIABLE_NAME, str(name)) else literal(made)


def translated(client: str, text: str, file: Path) -> str:
    """Returns the text of a client's file in our grammar; paths of references are relative to the file."""
    if (form := FORMS.get(client)) is None:
        return literal(text)
    made, at = "", 0
    for found in form.finditer(text):
        kind, colon, name = (found[1] or found[2]).partition(":")
        if client == "opencode":
            name = name.strip() if kind == "env" else str(file.parent / Path(name.strip()).expanduser())
        made += f"{literal(text[at : found.start()])}${{{kind}{colon}{name}}}"
        at = found.end()
    return made + literal(text[at:])
