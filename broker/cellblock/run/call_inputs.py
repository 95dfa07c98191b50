"""Decodes the input of a tool call and holds it against the tool's schema, here or, where it is large, apart.

What is read apart stays the bytes that it is, spelled as the loop would spell it for the server.
"""

from __future__ import annotations

from typing import Any, Final, cast

from pydantic_core import to_json

from cellblock.base.errors import CellblockError, Certainty, SchemaValidationError, ToolCallError
from cellblock.base.json import is_array
from cellblock.base.offload.light import is_light
from cellblock.base.offload.raw import RawJson
from cellblock.base.offload.share import Share
from cellblock.base.offload.task import ApartFailed, Task
from cellblock.base.suggest import nearest_names
from cellblock.run import payload
from cellblock.run.policy.rules import RunRules
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.schemas.cost import NotCheckable
from cellblock.tools.schemas.example import CheckedSchema, ValidatorCache
from cellblock.tools.schemas.explain import Violation, corrective_hint

MAX_TEXTS: Final = 8
"""Bounds the texts in one input that are read as JSON."""

READ_INPUT: Final = Task(
    work="cellblock.run.inputs_apart:read",
    subject="The input of a call",
    cpu_seconds=10,
)


class CallInputs:
    """Reads the inputs of one run's calls.

    Args:
        schemas: The tools' validators.
        share: Of the run's client.
        rules: What else inputs are held against; None for nothing.
    """

    def __init__(self, schemas: ValidatorCache, share: Share, rules: RunRules | None) -> None:
        self._schemas = schemas
        self._share = share
        self._rules = rules

    async def read(self, server: ServerEntry, tool: ToolEntry, body: bytes) -> Any:
        """Decodes and checks the input of a call (Code Mode specification, sections 5.3.1 and 7.2); no input is
        `{}`.

        Returns:
            Plain data, or a `RawJson` of an input that is too large to be decoded, or to be checked, here.

        Raises:
            SchemaValidationError: It is no JSON, too deep, or does not fit.
            ToolCallError: It cannot be read or checked within the bounds of that; the tool was not called.
        """
        label = f"{server.server_id}.{tool.export_name}"
        schema = self._schemas.get(tool.input_schema, label=label)
        if not is_light(body):
            return await self._read_apart(server, tool, body, schema)
        try:
            value: Any = payload.decode(body) if body else {}
        except payload.PayloadError as error:
            raise _unreadable(tool, str(error)) from None
        try:
            violation = schema.validator.judge(value)
        except NotCheckable:
            return await self._read_apart(server, tool, body, schema)
        whole = [value]
        for _ in range(MAX_TEXTS):
            if violation is None or not _read_text(whole, violation.path):
                break
            value, violation = whole[0], schema.validator.judge(whole[0])
        if violation is not None:
            raise _misfit(tool, schema, violation)
        if not isinstance(value, dict) and not tool.input_schema:
            raise _no_object(tool, payload.kind_of(value))
        return cast("Any", value)

    async def _read_apart(
        self, server: ServerEntry, tool: ToolEntry, body: bytes, schema: CheckedSchema
    ) -> RawJson:
        further = self._rules.schemas_for(server, tool) if self._rules is not None else ()
        try:
            answer = await self._share.do(
                READ_INPUT,
                {"label": f"{server.server_id}.{tool.export_name}"},
                body,
                *(to_json(part) for part in (tool.input_schema, *further)),
                subject=f"The input of {tool.export_name}",
            )
        except (CellblockError, OSError) as error:
            raise _not_read(tool, error) from None
        facts = answer.facts
        if "unreadable" in facts:
            raise _unreadable(tool, facts["unreadable"])
        if facts["violation"] is not None:
            raise _misfit(tool, schema, Violation(**facts["violation"]))
        if facts["kind"] != "object" and not tool.input_schema:
            raise _no_object(tool, facts["kind"])
        return RawJson(answer.parts[0], refusal=facts["refusal"])


def _read_text(whole: list[Any], path: str) -> bool:
    """Puts an object or array in the place of the text that is its JSON, and says whether there was one.

    Args:
        whole: The input, alone in a list.
        path: The place in the input, as a JSON Pointer.
    """
    around: Any = whole
    last: Any = 0
    try:
        for key in path.split("/")[1:]:
            around = around[last]
            last = int(key) if is_array(around) else key.replace("~1", "/").replace("~0", "~")
        text = around[last]
        if not isinstance(text, str) or text.strip()[:1] not in ("[", "{"):
            return False
        around[last] = payload.decode(text.encode())
    except (LookupError, TypeError, ValueError, payload.PayloadError):
        return False
    return True


def _unreadable(tool: ToolEntry, why: str) -> SchemaValidationError:
    said = f"The input of {tool.export_name} is {why}."
    return _refused(tool, said, "Pass plain, shallow JSON data.", "", "JSON of a moderate depth", why)


def _misfit(tool: ToolEntry, schema: CheckedSchema, violation: Violation) -> SchemaValidationError:
    said = f"The input of {tool.export_name} does not fit its schema: {violation.message}"
    details = {"example": schema.example} if schema.example is not None else {}
    hint = corrective_hint(violation, nearest_names)
    where = violation.path, violation.expected, violation.received
    return _refused(tool, said, hint, *where, **details)


def _no_object(tool: ToolEntry, kind: str) -> SchemaValidationError:
    said = f"The input of {tool.export_name} must be an object."
    hint = f"Call {tool.export_name}({{ … }}) with one object."
    return _refused(tool, said, hint, "", "object", kind)


def _refused(
    tool: ToolEntry, said: str, hint: str, path: str, expected: str, received: str, **details: object
) -> SchemaValidationError:
    return SchemaValidationError(
        said,
        hint=hint,
        toolName=tool.tool_name,
        exportName=tool.export_name,
        path=path,
        expected=expected,
        received=received,
        **details,
    )


def _not_read(tool: ToolEntry, error: CellblockError | OSError) -> ToolCallError:
    failed = isinstance(error, ApartFailed)
    said = error.message if isinstance(error, CellblockError) else f"No process can be started ({error})."
    return ToolCallError(
        f"{tool.export_name} was not called. {said}",
        hint="Send less at a time." if failed or not isinstance(error, CellblockError) else error.hint,
        certainty=Certainty.NOT_STARTED,
        summary="the input could not be read",
    )
