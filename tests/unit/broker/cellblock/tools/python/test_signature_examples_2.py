"""The examples of the Schema Inference specification from its "Unsupported Types" on, in its order.

What `test_signature_examples.py` says about differences within the specification holds here too.
"""

# ruff: noqa: UP045 - types are written as in the specification

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Optional

import jsonschema
import pytest
from pydantic import BaseModel, EmailStr, Field

from cellblock import tool
from cellblock.tools.python.pydantic_schema import prune_titles
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import read_tool
from support.tool_schemas import gives, made, output

# ---- Unsupported Types and Fallback --------------------------------------------------------------------


class Odd:
    """A type that pydantic knows nothing of."""


def test_complex_generics(caplog: pytest.LogCaptureFixture) -> None:
    def exotic(callbacks: dict[str, list[Odd]]) -> list[Odd]: ...

    with caplog.at_level(logging.DEBUG, "cellblock"):
        python_tool = made(exotic)
    assert python_tool.input_schema == {"type": "object", "additionalProperties": True}
    assert python_tool.output_schema is None
    assert caplog.text.count("Odd") >= 2, "a reason for the input, and one for the output"


def test_dynamic_types(caplog: pytest.LogCaptureFixture) -> None:
    """A type that only exists at run time is as good as any other where it can be found, else nothing is known."""

    def dynamic(value: Missing) -> None: ...  # noqa: F821 # pyright: ignore

    with caplog.at_level(logging.DEBUG, "cellblock"):
        assert made(dynamic).input_schema == {"type": "object", "additionalProperties": True}
    assert "Missing" in caplog.text


# ---- Schema Caching ------------------------------------------------------------------------------------


async def test_schema_caching() -> None:
    """Schemas are generated at registration, and never again."""
    generated: list[str] = []

    class Counted(BaseModel):
        value: int

        @classmethod
        def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
            generated.append("json schema")
            return handler(core_schema)

    def count(given: Counted) -> Counted:
        return given

    count.__annotations__.update({"given": Counted, "return": Counted})
    python_tool = read_tool(count)
    at_registration = len(generated)
    assert at_registration >= 2
    schemas = id(python_tool.input_schema), id(python_tool.output_schema)
    calls = PythonCalls(bound=20, threads=1)
    for number in range(3):
        arguments = {"given": {"value": number}}
        assert await calls.call(python_tool, arguments) == {"value": number}
    await calls.close()
    assert len(generated) == at_registration
    assert (id(python_tool.input_schema), id(python_tool.output_schema)) == schemas


# ---- Title Pruning -------------------------------------------------------------------------------------


def test_title_pruning() -> None:
    before = {
        "title": "AnalyticsTool",
        "type": "object",
        "properties": {"count": {"title": "Count", "type": "integer"}},
    }
    assert prune_titles(before) == {"type": "object", "properties": {"count": {"type": "integer"}}}


# ---- Examples ------------------------------------------------------------------------------------------


@tool(name="analyze", description="Analyze data with optional filters")
async def analyze_dataset(
    dataset: str, limit: int = 100, filters: Optional[dict[str, str]] = None
) -> dict[str, int]:
    return {"records": 42, "filtered": 10}


async def test_basic_tool_with_mixed_types() -> None:
    """As with `test_containers`: the keys of the output are in no annotation."""
    assert made(analyze_dataset).description == "Analyze data with optional filters"
    assert made(analyze_dataset).input_schema == {
        "type": "object",
        "properties": {
            "dataset": {"type": "string", "description": "Parameter dataset"},
            "limit": {"type": "integer", "description": "Parameter limit", "default": 100},
            "filters": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "string"}},
                    {"type": "null"},
                ],
                "description": "Parameter filters",
                "default": None,
            },
        },
        "required": ["dataset"],
        "additionalProperties": False,
    }
    assert made(analyze_dataset).output_schema == {
        "type": "object",
        "additionalProperties": {"type": "integer"},
    }
    shown = {
        "type": "object",
        "properties": {"records": {"type": "integer"}, "filtered": {"type": "integer"}},
        "additionalProperties": False,
    }
    jsonschema.validate(await gives(analyze_dataset, dataset="d"), shown)


@tool()
async def get_temperature(city: str) -> float:
    return 72.5


async def test_scalar_return_type() -> None:
    assert made(get_temperature).output_schema == {
        "type": "object",
        "properties": {"result": {"type": "number"}},
        "required": ["result"],
        "x-dedalus-box": {"field": "result"},
    }
    assert await gives(get_temperature, city="SF") == {"result": 72.5}


@dataclass
class Location:
    latitude: float
    longitude: float


@dataclass
class WeatherReport:
    temperature: float
    location: Location
    humidity: Optional[float] = None


@tool()
async def weather(city: str) -> WeatherReport:
    return WeatherReport(temperature=72.5, location=Location(latitude=37.7749, longitude=-122.4194))


async def test_nested_dataclass_with_optional_fields() -> None:
    assert output(weather) == {
        "type": "object",
        "properties": {
            "temperature": {"type": "number"},
            "location": {
                "type": "object",
                "properties": {"latitude": {"type": "number"}, "longitude": {"type": "number"}},
                "additionalProperties": False,
            },
            "humidity": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "additionalProperties": False,
    }
    assert await gives(weather, city="SF") == {
        "temperature": 72.5,
        "location": {"latitude": 37.7749, "longitude": -122.4194},
        "humidity": None,
    }


class CreateUserRequest(BaseModel):
    username: str = Field(..., min_length=3, max_length=20, pattern=r"^[a-zA-Z0-9_]+$")
    email: EmailStr
    age: int = Field(..., ge=13, le=120)
    bio: Optional[str] = Field(None, max_length=500)


@tool(flatten=True)
async def create_user(request: CreateUserRequest) -> dict[str, str]:
    assert isinstance(request, CreateUserRequest)
    return {"user_id": "usr_123", "status": "created"}


async def test_pydantic_model_with_validation() -> None:
    """The one example that shows a whole input of this kind: what `flatten=True` gives, to the letter."""
    assert made(create_user).input_schema == {
        "type": "object",
        "properties": {
            "username": {
                "type": "string",
                "minLength": 3,
                "maxLength": 20,
                "pattern": "^[a-zA-Z0-9_]+$",
                "description": "Parameter username",
            },
            "email": {"type": "string", "format": "email", "description": "Parameter email"},
            "age": {"type": "integer", "minimum": 13, "maximum": 120, "description": "Parameter age"},
            "bio": {
                "anyOf": [{"type": "string", "maxLength": 500}, {"type": "null"}],
                "description": "Parameter bio",
                "default": None,
            },
        },
        "required": ["username", "email", "age"],
        "additionalProperties": False,
    }
    given = await gives(create_user, username="ada", email="ada@example.com", age=36)
    assert given == {"user_id": "usr_123", "status": "created"}


CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {"custom_field": {"type": "string", "enum": ["a", "b", "c"]}},
    "required": ["custom_field"],
    "additionalProperties": False,
}


@tool(input_schema=CUSTOM_SCHEMA)
async def custom_tool(**kwargs: Any) -> str:
    return kwargs.get("custom_field", "default")


async def test_explicit_schema_override(caplog: pytest.LogCaptureFixture) -> None:
    """It is used as it is; that `**kwargs` has no schema of its own is then nothing to tell."""
    with caplog.at_level(logging.DEBUG, "cellblock"):
        assert made(custom_tool).input_schema == CUSTOM_SCHEMA
    assert caplog.text == ""
    assert await gives(custom_tool, custom_field="b") == {"result": "b"}


def test_examples_are_plain_functions_still() -> None:
    assert asyncio.run(get_temperature("SF")) == 72.5
