"""The Schema Inference specification's examples, as they are written there, in its order.

Where the specification's examples and its algorithm differ, the algorithm stands, and the test says so:

* Some examples show a part: properties without their `description`, outputs without their `required`. The parts
  are compared.
* Three examples show the fields of a class that is the only parameter as if they were the parameters. By the
  algorithm a parameter is a property; `@tool(flatten=True)` gives what those examples show.
* The output of `analyze` cannot be known from `dict[str, float]`.
"""

# ruff: noqa: UP007, UP045 - types are written as in the specification

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Optional, TypedDict, Union

import jsonschema
import mcp_types as types
import pytest
from pydantic import BaseModel, EmailStr, Field

from cellblock import tool
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import read_tool
from support.tool_schemas import BOXED_STRING, MOST, data_of, gives, made, output, properties

# ---- Input Schema Generation ---------------------------------------------------------------------------


@tool()
def variadic(*args: int, **kwargs: str) -> None:
    """As in "Fallback Behavior"."""


def test_fallback_behavior(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "cellblock"):
        assert made(variadic).input_schema == {"type": "object", "additionalProperties": True}
    assert "variadic" in caplog.text and "*args" in caplog.text


# ---- Output Schema Generation --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        types.CallToolResult,
        types.ServerResult,
        types.TextContent,
        types.ImageContent,
        types.AudioContent,
        types.ResourceLink,
        types.EmbeddedResource,
    ],
    ids=lambda content: getattr(content, "__name__", "ServerResult"),
)
def test_blocklist(content: Any) -> None:
    """Alone and within a union; a list of blocks is what a tool makes of them."""
    for annotation in (content, Optional[content], Union[dict[str, int], content], list[content]):

        def give() -> Any: ...

        give.__annotations__["return"] = annotation
        assert made(give).output_schema is None


# ---- Supported Types -----------------------------------------------------------------------------------


@tool()
def greet(name: str, age: int, active: bool = True) -> str:
    return f"Hello {name}, age {age}"


async def test_primitives() -> None:
    assert made(greet).input_schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Parameter name"},
            "age": {"type": "integer", "description": "Parameter age"},
            "active": {"type": "boolean", "description": "Parameter active", "default": True},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    assert made(greet).output_schema == BOXED_STRING
    assert await gives(greet, name="Ada", age=36) == {"result": "Hello Ada, age 36"}


@tool()
def analyze(values: list[int], metadata: dict[str, str]) -> dict[str, float]:
    return {"mean": sum(values) / len(values)}


async def test_containers() -> None:
    """The output of the example names `mean`, which is in no annotation: what the annotation says is declared."""
    assert properties(analyze) == {
        "values": {"type": "array", "items": {"type": "integer"}},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
    }
    assert made(analyze).output_schema == {"type": "object", "additionalProperties": {"type": "number"}}
    shown = {"type": "object", "properties": {"mean": {"type": "number"}}, "additionalProperties": False}
    given = await gives(analyze, values=[1, 2], metadata={})
    jsonschema.validate(given, shown)
    assert given == {"mean": 1.5}


@tool()
def set_mode(mode: Literal["fast", "accurate", "balanced"]) -> str:
    return f"Mode set to {mode}"


async def test_literal() -> None:
    assert properties(set_mode) == {"mode": {"enum": ["fast", "accurate", "balanced"], "type": "string"}}
    assert await gives(set_mode, mode="fast") == {"result": "Mode set to fast"}


@tool()
def find(query: str, limit: Optional[int] = None) -> list[str]:
    return []


async def test_optional_and_union() -> None:
    assert properties(find) == {
        "query": {"type": "string"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }
    assert made(find).output_schema == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "string"}}},
        "required": ["result"],
        "x-dedalus-box": {"field": "result"},
    }
    assert await gives(find, query="a", limit=None) == {"result": []}


class SearchParams(TypedDict):  # `typing`'s own, which pydantic refuses before Python 3.12
    query: str
    max_results: NotRequired[int]


def search(params: SearchParams) -> list[str]:
    assert isinstance(params, dict)
    return [params["query"]]


SEARCH_PROPERTIES = {"query": {"type": "string"}, "max_results": {"type": "integer"}}


async def test_not_required() -> None:
    nested = made(search).input_schema["properties"]["params"]
    assert (nested["properties"], nested["required"]) == (SEARCH_PROPERTIES, ["query"])
    assert made(search).input_schema["required"] == ["params"]
    assert await gives(search, params={"query": "a"}) == {"result": ["a"]}


async def test_not_required_flattened() -> None:
    @tool(flatten=True)
    def search_flat(params: SearchParams) -> list[str]:
        return search(params)

    assert properties(search_flat) == SEARCH_PROPERTIES
    assert made(search_flat).input_schema["required"] == ["query"]
    assert await gives(search_flat, query="a", max_results=1) == {"result": ["a"]}


@dataclass
class Address:
    street: str
    city: str
    postal_code: int


@dataclass
class Profile:
    name: str
    address: Address
    tags: list[str]


@tool()
def create_profile(name: str, street: str, city: str) -> Profile:
    return Profile(name=name, address=Address(street=street, city=city, postal_code=94107), tags=["new"])


async def test_dataclasses() -> None:
    assert output(create_profile) == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "address": {
                "type": "object",
                "properties": {
                    "street": {"type": "string"},
                    "city": {"type": "string"},
                    "postal_code": {"type": "integer"},
                },
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "additionalProperties": False,
    }
    assert made(create_profile).output_schema["required"] == ["name", "address", "tags"]
    assert await gives(create_profile, name="Ada", street="1 Main", city="SF") == {
        "name": "Ada",
        "address": {"street": "1 Main", "city": "SF", "postal_code": 94107},
        "tags": ["new"],
    }


class User(BaseModel):
    username: str = Field(..., min_length=3, max_length=20)
    email: str = Field(..., pattern=r"^[\w\.-]+@[\w\.-]+\.\w+$")
    age: int = Field(..., ge=0, le=120)


@tool(flatten=True)
def register_user_flat(user: User) -> str:
    return f"Registered {user.username}"


@tool()
def register_user(user: User) -> str:
    return f"Registered {user.username}"


USER_PROPERTIES = {
    "username": {"type": "string", "minLength": 3, "maxLength": 20},
    "email": {"type": "string", "pattern": "^[\\w\\.-]+@[\\w\\.-]+\\.\\w+$"},
    "age": {"type": "integer", "minimum": 0, "maximum": 120},
}


async def test_pydantic_models() -> None:
    assert made(register_user).input_schema["properties"]["user"]["properties"] == USER_PROPERTIES
    assert properties(register_user_flat) == USER_PROPERTIES
    assert made(register_user).output_schema == made(register_user_flat).output_schema == BOXED_STRING
    ada = {"username": "ada", "email": "a@b.de", "age": 36}
    assert await gives(register_user, user=ada) == {"result": "Registered ada"}
    assert await gives(register_user_flat, **ada) == {"result": "Registered ada"}


@dataclass
class ChatAction:
    kind: Literal["chat"]
    message: str


@dataclass
class NavigateAction:
    kind: Literal["navigate"]
    url: str


UnionAction = Union[ChatAction, NavigateAction]


@tool()
def choose_action(chat: bool) -> UnionAction:
    if chat:
        return ChatAction(kind="chat", message="hi")
    return NavigateAction(kind="navigate", url="https://example.com")


async def test_union_types() -> None:
    assert output(choose_action) == {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"enum": ["chat"], "type": "string"}, "message": {"type": "string"}},
                "additionalProperties": False,
            },
            {
                "type": "object",
                "properties": {"kind": {"enum": ["navigate"], "type": "string"}, "url": {"type": "string"}},
                "additionalProperties": False,
            },
        ]
    }
    assert await gives(choose_action, chat=True) == {"kind": "chat", "message": "hi"}
    assert await gives(choose_action, chat=False) == {"kind": "navigate", "url": "https://example.com"}


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
    calls = PythonCalls(bound=20, threads=1, most=MOST)
    for number in range(3):
        arguments = {"given": {"value": number}}
        assert data_of(await calls.call(python_tool, arguments)) == {"value": number}
    await calls.close()
    assert len(generated) == at_registration
    assert (id(python_tool.input_schema), id(python_tool.output_schema)) == schemas


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
