"""The fenced blocks of README.md and docs/, with what is said of them in the comment before."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n+)?^(?P<pad> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=pad)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Example:
    """One fenced block, with the comment before it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples() -> list[Example]:
    """All of them."""
    found: list[Example] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            pad = len(block["pad"])
            lines = "\n".join(line[pad:] for line in block["text"].splitlines())
            line = text.count("\n", 0, block.start("language")) + 1
            found.append(Example(page, line, block["language"], lines, block["mark"] or ""))
    return found


def statements(text: str) -> list[str]:
    """The lines of a bash block; what a backslash or a here-document continues is one."""
    found: list[str] = []
    until = None
    for line in text.splitlines():
        if until is not None or (found and found[-1].endswith("\\")):
            found[-1] += "\n" + line
            until = None if line == until else until
        elif line.strip() and not line.startswith("#"):
            found.append(line)
            if started := re.search(r"<<'?(\w+)'?", line):
                until = started[1]
    return found
