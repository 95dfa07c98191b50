"""Canaries: no secret of the configuration in a response, an error, a log, or the processes of the host."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cellblock import Broker
from support.brokers import host_of, ready
from support.entries import SERVERS, WARM, settings
from support.http_server import Answering, serving
from support.processes import descendants, told_to
from support.waits import warmed, within

CANARIES = {
    "env": "canary-env-5b1d",
    "option": "canary-option-77a0",
    "following": "canary-following-91fe",
    "header": "canary-header-c04e",
    "bearer": "canary-bearer-2f66",
    "user": "canary-user-8d13",
    "password": "canary-password-40be",
    "query": "canary-query-e9c2",
    "dsn": "canary-dsn-66d1",
}

CODE = """
    const seen = [];
    for (const name of ["leaky", "refusing", "http", "sse", "nobody"]) {
        let module;
        try { module = await import(`@codemode/servers/${name}`); } catch (error) {
            seen.push(error.message, error.hint, error.stack, JSON.stringify(error)); continue; }
        for (const tool of ["confess", "refuse"]) {
            try { seen.push(await module[tool]({})); } catch (error) {
                seen.push(error.message, error.hint, error.stack, JSON.stringify(error), JSON.stringify(error.result));
                console.error(error);
            }
        }
    }
    globalThis.__codemode_result__ = seen;
"""


class Refusing(Answering):
    """Answers every request with a refusal that quotes all of it."""

    def do_POST(self) -> None:
        message = json.loads(self.body() or b"{}")
        quoted = f"{self.path} {self.headers} {self.headers.get('authorization')}"
        body = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -32001, "message": quoted}}
        status = 200 if "id" in message else 401
        self.answer(status, json.dumps(body).encode(), Content_Type="application/json")

    def do_GET(self) -> None:
        self.answer(401, f"{self.path} {self.headers}".encode(), Content_Type="application/json")


@pytest.fixture(scope="module")
def http_port() -> Iterator[int]:
    """A port of this machine where `Refusing` answers."""
    with serving(Refusing) as address:
        yield int(address.rpartition(":")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory."""
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
async def broker(folder: Path, http_port: int, records: list[str]) -> AsyncIterator[Broker]:
    """A broker whose servers were all given canaries."""
    arguments = [
        f"--api-key={CANARIES['option']}", "--token", CANARIES["following"], f"postgres://app:{CANARIES['dsn']}@db/x"
    ]  # fmt: skip
    leaky = {
        "command": sys.executable,
        "args": ["-I", str(SERVERS / "odd_server.py"), "leaks", *arguments],
        "env": {"CANARY_API_KEY": CANARIES["env"], "CANARY_SERVICE": f"https://u:{CANARIES['dsn']}@service/"},
    }
    place = f"{CANARIES['user']}:{CANARIES['password']}@127.0.0.1"
    headers = {"Authorization": f"Bearer {CANARIES['bearer']}", "X-Api-Key": CANARIES["header"]}
    query = f"?api_key={CANARIES['query']}"
    servers = {
        "leaky": leaky,
        "refusing": {**leaky, "args": ["-I", str(SERVERS / "odd_server.py"), "refuses", *arguments]},
        "http": {"url": f"http://{place}:{http_port}/mcp{query}", "headers": headers},
        "sse": {"type": "sse", "url": f"http://{place}:{http_port}/sse{query}", "headers": headers},
        "nobody": {"url": f"http://{place}:1/mcp{query}", "headers": headers},
    }
    async with ready(settings(folder, servers, pool={"warm": WARM})) as started:
        assert list(started.catalog.servers) == ["leaky"], started.catalog.unavailable
        yield started


def quoted(text: str) -> list[str]:
    """Which canaries are in the text."""
    return [name for name, canary in CANARIES.items() if canary in text]


def contents_of(folder: Path) -> dict[str, str]:
    """The texts of all files below, by name."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.name: file.read_bytes().decode("utf-8", "replace") for file in files}


async def test_no_canary_in_a_response(broker: Broker) -> None:
    """All errors that a script can provoke, with the servers' own words around the secrets."""
    response = await within(broker.run(CODE))
    text = json.dumps(response.as_json())
    assert response.ok and text.count("leak: ") >= 4, text[:2000]
    assert "[redacted]" in text
    assert quoted(text) == []


async def test_no_canary_in_the_reasons_that_everybody_is_told(broker: Broker) -> None:
    reasons = broker.catalog.unavailable
    assert set(reasons) == {"refusing", "http", "sse", "nobody"}
    assert quoted(json.dumps(reasons)) == [], reasons


@pytest.mark.parametrize("name", ["refusing", "http", "sse", "nobody"])
async def test_no_canary_in_the_diagnostic_of_an_import(broker: Broker, name: str) -> None:
    response = await within(broker.run(f'import "@codemode/servers/{name}";'))
    assert response.diagnostics[0].error_class == "ServerNotFoundError"
    assert quoted(json.dumps(response.as_json())) == [], response.as_json()


async def test_no_canary_in_processes_of_the_host(broker: Broker) -> None:
    """Neither the host nor a worker is given any of it, by environment or command line."""
    await warmed(broker, 1)
    host = host_of(broker)
    processes = [host, *descendants(host.pid)]
    assert len(processes) >= 2
    told = [text for process in processes for text in told_to(process)]
    assert len(told) >= 2
    assert [quoted(text) for text in told if quoted(text)] == []


async def test_no_canary_in_files_of_the_state_directory_or_log_records(
    broker: Broker, folder: Path, records: list[str]
) -> None:
    await within(broker.run(CODE))
    contents = contents_of(folder)
    assert "host.log" in contents
    assert "leak: " in contents["upstream-leaky.log"]
    assert {name: quoted(text) for name, text in contents.items() if quoted(text)} == {}
    assert any("cellblock.tools.upstream" in record for record in records)
    assert [record for record in records if quoted(record)] == []
