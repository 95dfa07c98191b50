"""Kept scripts where two brokers share a PostgreSQL: what one lets in runs at both, and nothing else does."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cellblock import Broker
from cellblock.app.assembly import library_of
from cellblock.app.config.load import parse_settings
from cellblock.record.recording import Recording
from cellblock.record.scripts.library import Library, Trial
from cellblock.record.scripts.script_file import BadScript, Header, KeptScript, format_script
from support.entries import for_tests
from support.waits import until, until_found, within

KEY = base64.b64encode(bytes(range(32))).decode()
CALL = 'import { report } from "@codemode/scripts";\nglobalThis.__codemode_result__ = await report({});'


def version(number: int) -> KeptScript:
    return format_script("report", Header(description="x"), f"globalThis.__codemode_result__ = {number};\n")


def library(broker: Broker) -> Library:
    return library_of(broker.settings, broker.store)


@pytest.fixture
async def brokers(postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[Broker, Broker]]:
    section: dict[str, Any] = {
        "state": {"url": postgres_url, "key": KEY},
        "auth": {"keyring": "off"},
        "typecheck": "off",
        "scripts": {"dir": str(tmp_path / "kept")},
    }
    settings = parse_settings({"cellblock": for_tests(section)})
    async with (
        Broker(settings, state_dir=tmp_path / "a") as one,
        Broker(settings, state_dir=tmp_path / "b") as other,
    ):
        yield one, other


def running(library: Library) -> int | None:
    """The version that is approved, as it is known here."""
    approval = library.approvals.get("report")
    return None if approval is None else int(approval.script.code.split("=")[1].rstrip(";\n "))


async def results(brokers: tuple[Broker, Broker]) -> list[Any]:
    return [(await within(broker.run(CALL))).result for broker in brokers]


async def test_what_one_lets_in_runs_at_both_until_one_takes_it_back(brokers: tuple[Broker, Broker]) -> None:
    one, other = brokers
    await asyncio.to_thread(library(one).approvals.approve, version(1))

    async def both(wanted: list[Any]) -> bool:
        return await results(brokers) == wanted

    await until_found(lambda: both([1, 1]), "both run it", 30)
    await asyncio.to_thread(library(other).approvals.approve, version(2))
    await until_found(lambda: both([2, 2]), "both run the next version", 30)
    await asyncio.to_thread(library(other).approvals.remove, "report")
    await until_found(lambda: both([None, None]), "neither runs it", 30)


async def test_of_approvals_at_once_one_counts_at_both(brokers: tuple[Broker, Broker]) -> None:
    libraries = [library(broker) for broker in brokers]
    said: list[Any] = []
    for number in range(10):
        work = [
            asyncio.to_thread(each.approvals.approve, version(2 * number + at))
            for at, each in enumerate(libraries)
        ]
        said += await asyncio.gather(*work, return_exceptions=True)
        await until(lambda: running(libraries[0]) == running(libraries[1]), "both know the same", 30)
    refused = [one for one in said if isinstance(one, BaseException)]
    assert all(isinstance(one, BadScript) for one in refused), refused
    made = [one for one in said if not isinstance(one, BaseException)]
    # Each came behind the one that it names: none was written over unseen.
    assert len({one.before for one in made}) == len(made)

    async def both() -> bool:
        return await results(brokers) == [running(each) for each in libraries]

    await until_found(both, "both run what is approved", 30)


async def test_saves_at_once_mix_none(brokers: tuple[Broker, Broker]) -> None:
    libraries = [library(broker) for broker in brokers]

    def saved(each: Library, number: int) -> None:
        recording = Recording(
            made_by="",
            deno="",
            started_at=0.0,
            request={"code": str(number)},
            body=b"{}",
            conventions=True,
            limits={},
            message_bytes=1,
            catalog={},
            seed="0" * 64,
        )
        each.write(
            "report", Header(description="x"), str(number), Trial(recording, {"n": number}, {}), replace=True
        )

    await asyncio.gather(*(asyncio.to_thread(saved, libraries[number % 2], number) for number in range(20)))
    file = libraries[0].file("report")
    trials = [trial for each in libraries if (trial := each.trial(file)) is not None]
    assert [trial.input for trial in trials] == [{"n": int(file.code)}]


async def test_a_changed_byte_runs_at_none(brokers: tuple[Broker, Broker], postgres_url: str) -> None:
    await asyncio.to_thread(library(brokers[0]).approvals.approve, version(1))
    await until(lambda: library(brokers[1]).approvals.get("report") is not None, "the other knows it", 30)
    for at in (5, 60):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            changed = connection.execute(
                "UPDATE cellblock.shared SET version = version + 1000, "
                "body = set_byte(body, %s, get_byte(body, %s) # 1) WHERE kind = 'scripts' AND name = 'report'",
                (at, at),
            )
            assert changed.rowcount == 1
        # By a write of a broker, all see that there is something new.
        other = format_script(f"other_{at}", Header(description="x"), "1")
        await asyncio.to_thread(library(brokers[1]).approvals.approve, other)
        for each in map(library, brokers):
            await until(lambda each=each: each.approvals.get("report") is None, "it is seen", 30)
        assert await results(brokers) == [None, None]
