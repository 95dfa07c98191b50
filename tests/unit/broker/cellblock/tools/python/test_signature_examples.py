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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, Optional, TypedDict, Union

import mcp_types as types
import pytest
from pydantic import BaseModel, EmailStr, Field

from cellblock import tool
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import read_tool
from support.tool_schemas import BOXED_STRING, data_of, gives, made, output, properties

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
        assert made(give).result.schema is None


# ---- Supported Types -----------------------------------------------------------------------------------


@tool()
def greet(name: str, age: int, active: bool = True) -> str:
    return f"Hello {name}, age {age}"


@tool()
def analyze(values: list[int], metadata: dict[str, str]) -> dict[str, float]:
    return {"mean": sum(values) / len(values)}


@tool()
def set_mode(mode: Literal["fast", "accurate", "balanced"]) -> str:
    return f"Mode set to {mode}"


@tool()
def find(query: str, limit: Optional[int] = None) -> list[str]:
    return []


class SearchParams(TypedDict):  # `typing`'s own, which pydantic refuses before Python 3.12
    query: str
    max_results: NotRequired[int]


def search(params: SearchParams) -> list[str]:
    assert isinstance(params, dict)
    return [params["query"]]


SEARCH_PROPERTIES = {"query": {"type": "string"}, "max_results": {"type": "integer"}}


@tool(flatten=True)
def search_flat(params: SearchParams) -> list[str]:
    return search(params)


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


# ---- Unsupported Types and Fallback --------------------------------------------------------------------


class Odd:
    """A type that pydantic knows nothing of."""


@tool()
def variadic(*args: int, **kwargs: str) -> None:
    """As in "Fallback Behavior"."""


def exotic(callbacks: dict[str, list[Odd]]) -> list[Odd]: ...


def dynamic(value: Missing) -> None:  # noqa: F821 # pyright: ignore
    """A type that only exists at run time is as good as any other where it can be found, else nothing is known."""


@pytest.mark.parametrize(
    ("function", "said", "times"),
    [(variadic, "*args", 1), (exotic, "Odd", 2), (dynamic, "Missing", 1)],
    ids=["variadic", "complex generics", "dynamic types"],
)
def test_fallback_behavior(
    told: pytest.LogCaptureFixture, function: Callable[..., Any], said: str, times: int
) -> None:
    python_tool = made(function)
    assert python_tool.input.schema == {"type": "object", "additionalProperties": True}
    assert (python_tool.result.schema is None) == (function is exotic)
    assert function.__name__ in told.text
    assert told.text.count(said) >= times, "a reason for the input, and one for the output"


# ---- Schema Caching ------------------------------------------------------------------------------------


async def test_schema_caching(calls: PythonCalls) -> None:
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
    for number in range(3):
        assert data_of(await calls.call(python_tool, {"given": {"value": number}})) == {"value": number}
    assert len(generated) == at_registration


# ---- Examples ------------------------------------------------------------------------------------------


@tool(name="analyze", description="Analyze data with optional filters")
async def analyze_dataset(
    dataset: str, limit: int = 100, filters: Optional[dict[str, str]] = None
) -> dict[str, int]:
    return {"records": 42, "filtered": 10}


@tool()
async def get_temperature(city: str) -> float:
    return 72.5


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


class CreateUserRequest(BaseModel):
    username: str = Field(..., min_length=3, max_length=20, pattern=r"^[a-zA-Z0-9_]+$")
    email: EmailStr
    age: int = Field(..., ge=13, le=120)
    bio: Optional[str] = Field(None, max_length=500)


@tool(flatten=True)
async def create_user(request: CreateUserRequest) -> dict[str, str]:
    assert isinstance(request, CreateUserRequest)
    return {"user_id": "usr_123", "status": "created"}


TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
TEXTS = {"type": "array", "items": TEXT}
ADA = {"username": "ada", "email": "a@b.de", "age": 36}


def closed(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "additionalProperties": False}


LOOKS: dict[str, Callable[[Any], Any]] = {
    "whole input": lambda function: made(function).input.schema,
    "whole output": lambda function: made(function).result.schema,
    "input": properties,
    "output": output,
    "needed": lambda function: made(function).input.schema["required"],
    "needed of the output": lambda function: made(function).result.schema["required"],
    "members of the parameter": lambda function: next(
        {key: shown[key] for key in ("properties", "required")}
        for shown in made(function).input.schema["properties"].values()
    ),
    "description": lambda function: made(function).description,
}


@pytest.mark.parametrize(
    ("function", "look", "expected"),
    [
        (
            greet,
            "whole input",
            {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "Parameter name"},
                    "age": {"type": "integer", "description": "Parameter age"},
                    "active": {"type": "boolean", "description": "Parameter active", "default": True},
                },
                "required": ["name", "age"],
                "additionalProperties": False,
            },
        ),
        (greet, "whole output", BOXED_STRING),
        (
            analyze,
            "input",
            {
                "values": {"type": "array", "items": INTEGER},
                "metadata": {"type": "object", "additionalProperties": TEXT},
            },
        ),
        # The example names `mean`, which is in no annotation: what the annotation says is declared.
        (analyze, "whole output", {"type": "object", "additionalProperties": NUMBER}),
        (set_mode, "input", {"mode": {"enum": ["fast", "accurate", "balanced"], "type": "string"}}),
        (find, "input", {"query": TEXT, "limit": {"anyOf": [INTEGER, {"type": "null"}], "default": None}}),
        (
            find,
            "whole output",
            {
                "type": "object",
                "properties": {"result": TEXTS},
                "required": ["result"],
                "x-dedalus-box": {"field": "result"},
            },
        ),
        (search, "members of the parameter", {"properties": SEARCH_PROPERTIES, "required": ["query"]}),
        (search, "needed", ["params"]),
        (search_flat, "input", SEARCH_PROPERTIES),
        (search_flat, "needed", ["query"]),
        (
            create_profile,
            "output",
            closed(name=TEXT, address=closed(street=TEXT, city=TEXT, postal_code=INTEGER), tags=TEXTS),
        ),
        (create_profile, "needed of the output", ["name", "address", "tags"]),
        (
            register_user,
            "members of the parameter",
            {"properties": USER_PROPERTIES, "required": ["username", "email", "age"]},
        ),
        (register_user_flat, "input", USER_PROPERTIES),
        (register_user, "whole output", BOXED_STRING),
        (register_user_flat, "whole output", BOXED_STRING),
        (
            choose_action,
            "output",
            {
                "anyOf": [
                    closed(kind={"enum": ["chat"], "type": "string"}, message=TEXT),
                    closed(kind={"enum": ["navigate"], "type": "string"}, url=TEXT),
                ]
            },
        ),
        (analyze_dataset, "description", "Analyze data with optional filters"),
        (
            analyze_dataset,
            "whole input",
            {
                "type": "object",
                "properties": {
                    "dataset": {"type": "string", "description": "Parameter dataset"},
                    "limit": {"type": "integer", "description": "Parameter limit", "default": 100},
                    "filters": {
                        "anyOf": [{"type": "object", "additionalProperties": TEXT}, {"type": "null"}],
                        "description": "Parameter filters",
                        "default": None,
                    },
                },
                "required": ["dataset"],
                "additionalProperties": False,
            },
        ),
        # As of `analyze`: the keys of the output are in no annotation.
        (analyze_dataset, "whole output", {"type": "object", "additionalProperties": INTEGER}),
        (
            get_temperature,
            "whole output",
            {
                "type": "object",
                "properties": {"result": NUMBER},
                "required": ["result"],
                "x-dedalus-box": {"field": "result"},
            },
        ),
        (
            weather,
            "output",
            closed(
                temperature=NUMBER,
                location=closed(latitude=NUMBER, longitude=NUMBER),
                humidity={"anyOf": [NUMBER, {"type": "null"}]},
            ),
        ),
        # The one example that shows a whole input of this kind: what `flatten=True` gives, to the letter.
        (
            create_user,
            "whole input",
            {
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
            },
        ),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_schemas(function: Callable[..., Any], look: str, expected: Any) -> None:
    assert LOOKS[look](function) == expected


@pytest.mark.parametrize(
    ("function", "arguments", "result"),
    [
        (greet, {"name": "Ada", "age": 36}, {"result": "Hello Ada, age 36"}),
        (analyze, {"values": [1, 2], "metadata": {}}, {"mean": 1.5}),
        (set_mode, {"mode": "fast"}, {"result": "Mode set to fast"}),
        (find, {"query": "a", "limit": None}, {"result": []}),
        (search, {"params": {"query": "a"}}, {"result": ["a"]}),
        (search_flat, {"query": "a", "max_results": 1}, {"result": ["a"]}),
        (
            create_profile,
            {"name": "Ada", "street": "1 Main", "city": "SF"},
            {
                "name": "Ada",
                "address": {"street": "1 Main", "city": "SF", "postal_code": 94107},
                "tags": ["new"],
            },
        ),
        (register_user, {"user": ADA}, {"result": "Registered ada"}),
        (register_user_flat, ADA, {"result": "Registered ada"}),
        (choose_action, {"chat": True}, {"kind": "chat", "message": "hi"}),
        (choose_action, {"chat": False}, {"kind": "navigate", "url": "https://example.com"}),
        (analyze_dataset, {"dataset": "d"}, {"records": 42, "filtered": 10}),
        (get_temperature, {"city": "SF"}, {"result": 72.5}),
        (
            weather,
            {"city": "SF"},
            {
                "temperature": 72.5,
                "location": {"latitude": 37.7749, "longitude": -122.4194},
                "humidity": None,
            },
        ),
        (
            create_user,
            {"username": "ada", "email": "ada@example.com", "age": 36},
            {"user_id": "usr_123", "status": "created"},
        ),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
async def test_results(function: Callable[..., Any], arguments: dict[str, Any], result: Any) -> None:
    assert await gives(function, **arguments) == result


CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {"custom_field": {"type": "string", "enum": ["a", "b", "c"]}},
    "required": ["custom_field"],
    "additionalProperties": False,
}


@tool(input_schema=CUSTOM_SCHEMA)
async def custom_tool(**kwargs: Any) -> str:
    return kwargs.get("custom_field", "default")


async def test_explicit_schema_override(told: pytest.LogCaptureFixture) -> None:
    """It is used as it is; that `**kwargs` has no schema of its own is then nothing to tell."""
    assert made(custom_tool).input.schema == CUSTOM_SCHEMA
    assert told.text == ""
    assert await gives(custom_tool, custom_field="b") == {"result": "b"}


async def test_examples_are_plain_functions_still() -> None:
    assert await get_temperature("SF") == 72.5
