"""No regular expression takes longer than its text is long, whatever scripts, servers, clients and files say.

Every pattern of the broker and the worker host is found in the source, and fed with texts that are made from itself:
its own beginnings and characters, over and over, and an end that does not fit. So a new one is noticed.
"""

import ast
import gc
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from re import (
    _constants as sre,  # type: ignore[attr-defined]
    _parser as sre_parser,  # type: ignore[attr-defined]
)
from typing import Any

import pytest

from cellblock.base.redaction import Redactor, safe_text
from cellblock.base.secret_values import looks_secret, secrets_of
from cellblock.base.settings.settings import ServerConfig
from cellblock.base.settings.syntax import without_comments
from cellblock.base.terminal import harmless
from cellblock.tools.schemas.cost import states
from cellblock.types.check import misuse

ROOTS = {"cellblock": "broker/cellblock", "cellblock_worker": "worker_runtime/cellblock_worker"}

ROOT = Path(__file__).parents[2]
PARTS = [
    (package, part.name)
    for package, folder in ROOTS.items()
    for part in sorted((ROOT / folder).iterdir())
    if part.suffix == ".py" or (part.is_dir() and part.name != "__pycache__")
]
REPEATS = (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT)
AT_ONE_PLACE = {"match", "fullmatch"}
"""Methods that try a pattern at one place; all others try it at each."""

LENGTHS = (200, 3_000)
"""Of texts, in characters: the short one is for patterns that never come to an end with the long one."""

NOISE_SECONDS = 0.0015
"""What a text may take without being looked at closer; a quadratic pattern takes about 5 ms for the long one, a linear
one that finds something at each place 0.7."""

GROWTH = 9
"""Four times the text takes a linear pattern four times as long, a quadratic one 16 times."""

FEW = 3
"""Without `--thorough`, one text in so many is tried."""

MAX_BEGINNINGS = 40


@dataclass(frozen=True)
class Use:
    """A pattern and how it is used."""

    place: str
    pattern: re.Pattern[Any]
    methods: frozenset[str]


# ---- all patterns of the source ----------------------------------------------------------------------


def uses(package: str, part: str) -> Iterator[Use]:
    """Those of a folder of a package, or of a file in it."""
    folder = ROOT / ROOTS[package]
    for path in [folder / part] if part.endswith(".py") else sorted((folder / part).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^import re$", text, re.MULTILINE) is None:
            continue
        tree = ast.parse(text)
        module = ".".join([package, *path.relative_to(folder).with_suffix("").parts])
        methods = methods_of(tree)
        yield from named_uses(module, methods)
        yield from inline_uses(module, tree, methods)
    if (package, part) == ("cellblock", "types"):
        yield from misuse_uses()


def misuse_uses() -> Iterator[Use]:
    """Patterns that a table has as texts, and a query."""
    searched = [one[0] for one in misuse.COMPLAINED] + [one[4] for one in misuse.COMPLAINED]
    searched += [one[2] for one in misuse.WRITTEN.values()]
    searched += [
        text.replace("\\\\", "\\") for text in re.findall(r'match\? @\w+ "((?:[^"\\]|\\.)*+)"', misuse.QUERY)
    ]
    for text in filter(None, searched):
        yield Use(f"misuse {text}", re.compile(text), frozenset({"search"}))
    for one in misuse.COMPLAINED:
        yield Use(f"misuse {one[1]}", re.compile(one[1], re.DOTALL), frozenset({"fullmatch"}))


def named_uses(module: str, methods: Mapping[str, set[str]]) -> Iterator[Use]:
    """Patterns in the module's own names, those in its tuples and dicts included."""
    for name, value in vars(import_module(module.removesuffix(".__init__"))).items():
        for pattern in patterns_in(value):
            known = methods.get(name, set()) if isinstance(value, re.Pattern) else set[str]()
            yield Use(f"{module}.{name}", pattern, frozenset(known or {"finditer"}))


def methods_of(tree: ast.Module) -> dict[str, set[str]]:
    """What is called of each name in a module."""
    methods: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            methods.setdefault(node.value.id, set()).add(node.attr)
    return methods


def patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from patterns_in(item)


def inline_uses(module: str, tree: ast.Module, methods: Mapping[str, set[str]]) -> Iterator[Use]:
    """Patterns written where they are used; what is put into one counts as a word."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = dict.fromkeys(inner for function in functions for inner in ast.walk(function))
    names = {
        node.value: node.targets[0].id
        for node in inside
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in inside:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func.value) != "re":
            continue
        text = written(node.args[0])
        flags = "".join(ast.unparse(word.value) for word in node.keywords if word.arg == "flags")
        if text is not None:
            known = methods.get(names.get(node, ""), set()) | {node.func.attr} - {"compile"}
            found = re.compile(text, re.MULTILINE if "MULTILINE" in flags else 0)
            yield Use(f"{module}:{node.lineno}", found, frozenset(known or {"finditer"}))


def written(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "word" for part in node.values)
    return None


# ---- texts that a pattern finds hard -----------------------------------------------------------------


def beginnings(parts: Any) -> Iterator[str]:
    """Samples of what fits the beginning of a pattern, longer and longer, through each branch."""
    before = ""
    for part in parts:
        for more in part_beginnings(part):
            yield before + more
        before += sample([part])


def part_beginnings(part: Any) -> Iterator[str]:
    inside = inside_of(part)
    for branch in inside:
        yield from beginnings(branch)
    if not inside:
        yield sample([part])


def inside_of(part: Any) -> list[Any]:
    """The patterns that a part is made of: one, or each branch."""
    kind, value = part
    if kind is sre.BRANCH:
        return value[1]
    if kind in REPEATS:
        return [value[2]]
    if kind is sre.SUBPATTERN:
        return [value[3]]
    return [value] if kind is sre.ATOMIC_GROUP else []


def sample(parts: Any) -> str:
    made = ""
    for kind, value in parts:
        if inside := inside_of((kind, value)):
            made += sample(inside[0]) * (max(1, min(value[0], 60)) if kind in REPEATS else 1)
        elif kind not in (sre.ASSERT, sre.ASSERT_NOT, sre.AT):
            made += next(characters([(kind, value)]), "")
    return made


def characters(parts: Any) -> Iterator[str]:
    """One character for each literal, range and class of a pattern."""
    for kind, value in parts:
        if kind is sre.LITERAL:
            yield chr(value)
        elif kind is sre.ANY:
            yield "a"
        elif kind is sre.NOT_LITERAL:
            yield "b" if value == ord("a") else "a"
        elif kind is sre.IN:
            if value[0][0] is sre.NEGATE:
                refused = re.compile("|".join(re.escape(char) for char in characters(value[1:])) or "(?!)")
                yield from (char for char in "a- 1.[" if not refused.match(char))
            yield from characters(value)
        elif kind is sre.RANGE:
            yield chr(value[0])
        elif kind is sre.CATEGORY:
            yield {sre.CATEGORY_DIGIT: "1", sre.CATEGORY_SPACE: " ", sre.CATEGORY_WORD: "w"}.get(value, "-")
        elif kind in (sre.ASSERT, sre.ASSERT_NOT):
            yield from characters(value[1])
        else:
            for branch in inside_of((kind, value)):
                yield from characters(branch)


def hard_texts(pattern: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    """Makers of texts of a given length."""
    text = pattern.pattern
    parsed = sre_parser.parse(text, pattern.flags)
    every = list(dict.fromkeys(characters(parsed)))
    # Those that are no letters first: words are whole in the beginnings.
    atoms = sorted(every, key=str.isalnum)[:10]
    starts = list(dict.fromkeys(start for start in beginnings(parsed) if start))
    if len(starts) > MAX_BEGINNINGS:
        starts = starts[:: len(starts) // MAX_BEGINNINGS + 1]
    heads = ["", *starts]
    pumps = dict.fromkeys([*starts, *(a + b for a in [*starts, *atoms] for b in atoms), *atoms])
    pairs = [*(("", pump) for pump in pumps), *((head, atom) for head in heads for atom in atoms)]
    for head, pump in dict.fromkeys(pairs):

        def made(chars: int, head: str = head, pump: str = pump) -> Any:
            whole = head + pump * (chars // len(pump)) + "\x01"
            return whole.encode("utf-8", "replace") if isinstance(text, bytes) else whole

        yield made


# ---- timing ------------------------------------------------------------------------------------------


def seconds(work: Callable[[], Any]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def grows(work: Callable[[Any], Any], made: Callable[[int], Any], tries: int = 10) -> float:
    """How many times longer four times the text takes, at worst; 0 when it takes no time to speak of."""
    for chars in LENGTHS:
        text = made(chars)
        if seconds(lambda text=text: work(text)) < NOISE_SECONDS:
            continue
        # Twice as long, so that the clock's steps do not count; again, in case that something else took the time.
        short, longer = made(2 * chars), made(8 * chars)
        growth = 0.0
        for _ in range(tries):
            before = max(NOISE_SECONDS, seconds(lambda text=short: work(text)))
            growth = seconds(lambda text=longer: work(text)) / before
            if growth < GROWTH:
                break
        else:
            return growth
    return 0


def work_of(use: Use) -> Callable[[Any], Any]:
    if use.methods <= AT_ONE_PLACE:
        return use.pattern.match if "match" in use.methods else use.pattern.fullmatch
    return lambda text: sum(1 for _ in use.pattern.finditer(text))


@pytest.mark.parametrize("share", [FEW, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("package", "part"), PARTS)
def test_no_pattern_is_slower_than_linear(package: str, part: str, share: int) -> None:
    gc.disable()
    try:
        for use in uses(package, part):
            for made in islice(hard_texts(use.pattern), None, None, share):
                assert (found := grows(work_of(use), made)) < GROWTH, (use.place, found, made(60))
    finally:
        gc.enable()


def test_patterns_are_found() -> None:
    assert sum(1 for package, part in PARTS for _ in uses(package, part)) > 150


# ---- Python before 3.11.5 ----------------------------------------------------------------------------


def stops_midway(parts: Any) -> bool:
    """Whether a part that keeps its place in the text comes before one that may not fit."""
    for place, part in enumerate(parts):
        kind, value = part
        inside = inside_of(part)
        if kind in (sre.ASSERT, sre.ASSERT_NOT) or any(stops_midway(one) for one in inside):
            return True
        always_fits = kind in REPEATS and value[0] == 0 and place == len(parts) - 1
        at_first = place == 0 and kind in (sre.POSSESSIVE_REPEAT, sre.BRANCH)
        if inside and not always_fits and not at_first:
            return True
    return False


def possessive(parts: Any) -> Iterator[Any]:
    """What possessive quantifiers in a pattern repeat."""
    for part in parts:
        inside = [part[1][1]] if part[0] in (sre.ASSERT, sre.ASSERT_NOT) else inside_of(part)
        for one in inside:
            if part[0] is sre.POSSESSIVE_REPEAT:
                yield one
            yield from possessive(one)


@pytest.mark.parametrize(("package", "part"), PARTS)
def test_early_python_3_11_reads_each_pattern_alike(package: str, part: str) -> None:
    """There, a possessive group goes on from where its last try stopped; `(?>(?:…)*)` does not."""
    for use in uses(package, part):
        for repeated in possessive(sre_parser.parse(use.pattern.pattern, use.pattern.flags)):
            assert not stops_midway(repeated), use.place


# ---- functions that text goes through ----------------------------------------------------------------


def pumped(head: str, pump: str) -> Callable[[int], str]:
    return lambda chars: head + pump * (chars // len(pump))


REDACTOR = Redactor(ServerConfig(command="x", args=["--token", "aab" * 30], env={"KEY": "ab" * 200}))

FUNCTIONS: list[tuple[Callable[[str], object], Callable[[int], str]]] = [
    *(
        (safe_text, pumped("", pump))
        for pump in ("secret-", "eyJ-", "a://", "password: ", "bearer ", "token'", "pwd=a,")
    ),
    *((without_comments, pumped("", pump)) for pump in ('"\\"', '\\"', "/*", "//", ", ", "\\")),
    *((states, pumped("", pump)) for pump in ("[", "[^", r"\p{", "{1", r"[\\")),
    *((REDACTOR.text, pumped("", pump)) for pump in ("ab", "a", "aab")),
    *(
        (lambda text: list(secrets_of(ServerConfig(command="x", args=[text]))), pumped("", pump))
        for pump in ("a=", "a:", "--a=", "a://", "; ", "{", "[", "eyJ-", "sk-")
    ),
    *(
        (lambda text: looks_secret("X", text), pumped("/", pump))
        for pump in ("a/", "./", "aA1", "${", "eyJ-")
    ),
    *((harmless, pumped("", pump)) for pump in ("\n", "\ufe0f", "a")),
]


@pytest.mark.parametrize(
    ("work", "made"), FUNCTIONS, ids=lambda value: getattr(value, "__qualname__", "")[:20]
)
def test_no_function_is_slower_than_linear(work: Callable[[str], object], made: Callable[[int], str]) -> None:
    assert (found := grows(work, made)) < GROWTH, (found, made(240))


# ---- the check itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [r"\beyJ[\w-]{10,}\.", r"\s+at x$"])
def test_slow_patterns_are_noticed(pattern: str) -> None:
    work = work_of(Use("", re.compile(pattern), frozenset({"search"})))
    texts = islice(hard_texts(re.compile(pattern)), None, None, FEW)
    assert any(grows(work, made, tries=1) >= GROWTH for made in texts)
