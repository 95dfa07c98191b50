"""Makes two readings of a server's declarations: as they are, and closed, where an object has what is declared
alone.

The closed one is what tells a slip: most schemas are open, and then a misspelt key or field is no type error at all.
"""

from __future__ import annotations

import re
from typing import Final

_OPEN_AT_END: Final = re.compile(r"; \[key: string\]: unknown(?= \})")
_OPEN_LINE: Final = re.compile(r"(?<=;\n) *\[key: string\]: unknown;\n")

_JSON_TEXT: Final = "type JsonText<T> = string & { readonly [jsonOf]: T };"

# A string in every respect but these: its characters are never what a script wants of it.
_NO_CHARACTERS: Final = (
    "type JsonText<T> = string & { readonly [jsonOf]: T; readonly [Symbol.iterator]: never };"
)


def _without_characters(function: str, more: str = "") -> str:
    """Gives an overload of a function for a text that holds JSON, after one for `never`; of `any`, which fits too, the
    compiler says so."""
    return (
        f"      {function}(value: never{more}): any[];\n      /** @deprecated */\n"
        f"      {function}<T extends JsonText<any>>(text: T{more}): any[];\n"
    )


_JSON_GLOBAL: Final = "  global {\n    interface JSON {\n"
_DEPRECATED: Final = (
    "  global {\n"
    "    interface ObjectConstructor {\n"
    + "".join(_without_characters(name) for name in ("keys", "values", "entries"))
    + f"    }}\n    interface ArrayConstructor {{\n{_without_characters('from', ', map?: any')}    }}\n"
    "    interface JSON {\n"
)


def as_is(text: str) -> str:
    """Gives the declarations of a server, with a text that holds JSON as something that has no characters."""
    return text.replace(_JSON_TEXT, _NO_CHARACTERS).replace(_JSON_GLOBAL, _DEPRECATED)


def closed(text: str) -> str:
    """Gives the declarations of a server without what declared keys stand beside: `[key: string]: unknown`.

    An object that declares no key at all stays open, and so do keys with a type of their own.
    """
    return _OPEN_LINE.sub("", _OPEN_AT_END.sub("", text))
