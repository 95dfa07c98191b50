"""Measures how tool inputs are checked, next to the reference implementation and to the library alone.

Over the input schemas of the recorded catalogs (tests/fixtures/catalogs): the cost of importing, of compiling a
schema, of one verdict, of one explained violation and of one example; medians, in microseconds. The ratios
carry over to other machines, the times do not.
"""

from __future__ import annotations

import gc
import importlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema_rs

from benchmarks.harness import best_of, parser
from cellblock.schemas.example import minimal_example
from cellblock.schemas.validation import InputValidator
from support.recorded_catalogs import recorded_tools

reference_library: Any = importlib.import_module("jsonschema")  # only partly typed
REPEATS = 20
IMPORT_REPEATS = 7


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; returns 0."""
    parser("validation", __doc__).parse_args(arguments)
    schemas: list[Any] = [tool["inputSchema"] for tool in recorded_tools()]
    examples = [minimal_example(schema) for schema in schemas]
    print(f"{len(schemas)} input schemas, {sum(example is not None for example in examples)} examples")
    wrong: list[Any] = [
        {"unknown": 1, **dict.fromkeys(schema.get("required", ()), object_of_no_type())} for schema in schemas
    ]
    ours = [InputValidator(schema) for schema in schemas]
    native = [jsonschema_rs.validator_for(schema, offline=True) for schema in schemas]
    reference = [reference_for(schema) for schema in schemas]
    rows: list[tuple[str, list[Callable[[int], Any]]]] = [
        (
            "compile",
            [
                lambda index: InputValidator(schemas[index]).is_checking,
                lambda index: jsonschema_rs.validator_for(schemas[index], offline=True),
                lambda index: reference_for(schemas[index]),
            ],
        ),
        (
            "verdict: it fits",
            [
                lambda index: ours[index].check(examples[index]),
                lambda index: native[index].is_valid(examples[index]),
                lambda index: reference[index].is_valid(examples[index]),
            ],
        ),
        (
            "explained violation",
            [
                lambda index: ours[index].check(wrong[index]),
                lambda index: list(native[index].iter_errors(wrong[index])),
                lambda index: reference_library.exceptions.best_match(
                    reference[index].iter_errors(wrong[index])
                ),
            ],
        ),
        ("example", [lambda index: minimal_example(schemas[index], ours[index])]),
    ]
    print(
        f"{'microseconds (median)':<24}{'cellblock':>12}{'jsonschema-rs':>16}{'jsonschema':>12}{'ratio':>10}"
    )
    for name, works in rows:
        took = [median_time(work, len(schemas)) for work in works]
        ratio = f"{took[-1] / took[0]:>9.1f}x" if len(took) > 1 else ""
        print(
            f"{name:<24}"
            + "".join(f"{one:>{width}.1f}" for one, width in zip(took, (12, 16, 12), strict=False))
            + ratio
        )
    large = {"items": [{"id": index, "name": f"name {index}"} for index in range(10_000)]}
    item = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["id"],
    }
    schema = {"type": "object", "properties": {"items": {"type": "array", "items": item}}}
    validators = [
        InputValidator(schema).check,
        jsonschema_rs.validator_for(schema).is_valid,
        reference_for(schema).is_valid,
    ]
    took = [median_time(lambda _, judge=judge: judge(large), 1) for judge in validators]
    print(f"{'30,000 values':<24}{took[0]:>12.1f}{took[1]:>16.1f}{took[2]:>12.1f}{took[2] / took[0]:>9.1f}x")
    print("import, processor milliseconds on top of what the broker imports anyway:")
    for module in ("jsonschema_rs", "cellblock.schemas.validation", "jsonschema"):
        print(f"  {module:<32}{import_time(module):>6.1f}")
    return 0


def object_of_no_type() -> dict[str, Any]:
    """A value that hardly any property takes."""
    return {"no": {"such": "type"}}


def reference_for(schema: Any) -> Any:
    """The reference implementation's validator for a schema."""
    chosen = reference_library.validators.validator_for(
        schema, default=reference_library.Draft202012Validator
    )
    return chosen(schema)


def median_time(work: Callable[[int], Any], count: int) -> float:
    """Median over the schemas of the best of some repeats, in microseconds."""
    gc.collect()
    return (
        statistics.median(best_of(lambda index=index: work(index), REPEATS) for index in range(count)) * 1e6
    )


def import_time(module: str) -> float:
    """Processor time of importing a module after the MCP SDK, in milliseconds; the best of some processes."""
    code = (
        "import asyncio, mcp, pydantic, time; started = time.process_time(); "
        f"import {module}; print(time.process_time() - started)"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
        for _ in range(IMPORT_REPEATS)
    ]
    return min(float(run.stdout) for run in runs) * 1000
