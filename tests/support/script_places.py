"""Scripts with every line end in every place, and a plain count of where in them something is."""

from hypothesis import strategies as st

ENDS = ("\n", "\r", "\r\n", "\u2028", "\u2029")
"""All of ECMAScript's."""


def counted(text: str, index: int) -> tuple[int, int]:
    """Line and column from 1 of the character at `index`: one character after the other, as the language says."""
    line, column = 1, 1
    for at, char in enumerate(text[:index]):
        if char in "\n\u2028\u2029" or (char == "\r" and text[at + 1 : at + 2] != "\n"):
            line, column = line + 1, 1
        else:
            column += 2 if ord(char) > 0xFFFF else 1
    return line, column


def path_of(code: str, index: int) -> str:
    """What a diagnostic says of that place."""
    return "script.js:{}:{}".format(*counted(code, index))


_spaces = st.sampled_from([*ENDS, "\t", " ", "\xa0", "\u3000", "\n\r", "\r\r\n"])
_inside = st.lists(
    st.sampled_from([*ENDS, "\t", "é", "💥", "👩\u200d👩", "import", " from 'x'", "//"]), max_size=4
)
_in_string = st.lists(
    st.sampled_from(["\u2028", "\u2029", "\\\r\n", "\\\r", "\t", "💥", "import('x')"]), max_size=3
)

fillers = st.lists(
    st.one_of(
        _spaces,
        _inside.map(lambda parts: f"/*{''.join(parts)}*/"),
        _inside.map(lambda parts: f";`{''.join(parts)}${{1}}`;"),
        _in_string.map(lambda parts: f';"{"".join(parts)}";'),
        st.sampled_from(ENDS).map(lambda end: f"// 💥\t import x from 'x'{end}"),
    ),
    max_size=6,
).map("".join)
"""Text that does nothing and may stand between any two statements."""

spaces = st.lists(st.one_of(_spaces, st.just(";'💥';"), st.just("/*💥\r\n\r*/")), max_size=8).map("".join)
"""The same, with separators only as white space."""

starts = st.sampled_from(
    ["", "", "\ufeff", *(f"#!/bin/x 💥 import('x'){end}" for end in ENDS), "\ufeff#!x\u2028"]
)
"""How a script may begin."""
