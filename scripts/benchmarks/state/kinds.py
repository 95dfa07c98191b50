"""Kinds are what brokers share in a PostgreSQL: how each is written, step by step, and how it is found to be whole.

A kind writes an item and yields after each step that is certain. Its check is told, for each item that was begun, how
many steps are: one more may be done. What brokers change together (pins, a login, shapes, a quota) has one thing for a
round of brokers, in which each certain item must be found again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from benchmarks.state.stores import URL, Stores
from cellblock.base import count_rows
from cellblock.base.count_rows import CountRows
from cellblock.base.database import Away, StoreError
from cellblock.base.postgresql import PostgresDatabase
from cellblock.base.questions import ParkedQuestion
from cellblock.config.policy import NAMED, Grant
from cellblock.frontend.client import Owner
from cellblock.frontend.outputs.kept import Output
from cellblock.journal.parked import Parked
from cellblock.journal.rows import AnyPiece, Head, Piece, waiting_in
from cellblock.learning.infer import shape_of, to_schema
from cellblock.learning.observation import Observation, ToolKey
from cellblock.upstream.auth.errors import LoginStoreError
from cellblock.upstream.auth.record import LoginRecord
from cellblock.upstream.definitions import from_json
from cellblock.upstream.pins.pin_store import PinError
from cellblock.upstream.pins.pins import first_pins

AGAIN_SECONDS: Final = 0.05
"""Separates two tries, or looks, while PostgreSQL is away."""

PARKED_SECONDS: Final = 86_400.0
"""Says how long a run waits for its answer: longer than this lasts."""

LOCK_SECONDS: Final = 60.0
"""Bounds the wait for another broker that renews the login; it takes milliseconds."""

PERIOD_MS: Final = 10 * 365 * 86_400_000
"""No period of a quota ends while this runs."""

ORIGIN: Final = "sha256:bench"


class Said(NamedTuple):
    """Says how much of an item is certain: its steps, and what the last one gave."""

    steps: int
    text: str = ""


Written = AsyncIterator[str]
Faults = AsyncIterator[str]


def broker_of(item: str) -> str:
    """Returns the name of the broker that writes an item."""
    return item.rpartition("-")[0]


async def _until(is_done: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await is_done():
            return
        await asyncio.sleep(AGAIN_SECONDS)


# ---- runs: what is at work, parked, answered, taken and over -------------------------------------------------

LIFE: Final = (
    ("running", False, ["recording"]),
    ("running", False, ["recording", "call"]),
    ("parked", False, ["recording", "parked"]),
    ("parked", True, ["recording", "parked", "answers"]),
    ("running", False, ["recording", "parked", "answers"]),
    ("ended", False, ["facts", "recording"]),
)
"""Says what is read of a run after each of its steps: its state, whether it has its answers, and its pieces."""


async def write_run(stores: Stores, group: str, item: str) -> Written:
    """Writes a run as a broker does that has it from its beginning to its end."""
    question = ParkedQuestion(call=1, server=group, tool=item, destructive=True, input="{}", bytes=2)
    head = Head(item, "bench", time.time(), state="running")

    async def write(row: Head, *pieces: AnyPiece) -> None:
        if not await asyncio.wrap_future(stores.journals.write(row, lambda: pieces, owner=stores.name)):
            raise Away("the run was not written")

    recording = Piece("recording", item.encode())
    await write(head, recording)
    yield ""
    await write(head, Piece("call", item.encode()))
    yield ""
    parked = replace(head, state="parked", turn=1, expires=head.began + PARKED_SECONDS)
    await write(parked, recording, Piece("parked", Parked(questions=(question,)).pack()))
    yield ""
    if await stores.journals.asked(lambda store: store.answer(item, {1: "accepted"}), None) is None:
        raise AssertionError(f"{item} was parked and is not")
    yield ""
    if await stores.journals.asked(lambda store: store.take(item, stores.name), None) is None:
        raise AssertionError(f"{item} was answered and cannot be taken")
    yield ""
    over = replace(head, state="ended", ended=time.time(), outcome="ok")
    await write(over, Piece("facts", item.encode()), recording)
    yield ""


async def wrong_runs(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for runs that are not as they were written."""
    for item, said in items.items():
        try:
            found = await stores.journals.read(item)
            if found is None:
                if said.steps:
                    yield f"{item} is lost"
                continue
            head, pieces = found
            now = (head.state, head.is_answered, [piece.kind for piece in pieces])
            if now not in LIFE[max(0, said.steps - 1) : said.steps + 1]:
                yield f"{item} is {now} after step {said.steps}"
            if any(
                piece.body != item.encode() for piece in pieces if piece.kind not in ("parked", "answers")
            ):
                yield f"{item} has another run's pieces"
            if "parked" in now[2]:
                parked, answers = waiting_in(pieces)
                if parked.questions[0].tool != item or answers not in ({}, {1: "accepted"}):
                    yield f"{item} waits for what it has not asked"
        except StoreError as error:
            yield f"{item} cannot be read: {error}"


# ---- outputs -------------------------------------------------------------------------------------------------


def _bodies(item: str) -> dict[str, str]:
    return {"result": f"{item} " * 300, "logs": f"log of {item}\n"}


async def write_output(stores: Stores, group: str, item: str) -> Written:
    """Keeps a result of several pages and its logs, at once."""
    bodies = _bodies(item)
    outputs = [
        Output("result", "text/plain", bodies["result"].encode()),
        Output("logs", "text/plain", bodies["logs"].encode()),
    ]
    await stores.outputs.keep(Owner(item, item), outputs)
    yield ""


async def wrong_outputs(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for outputs that are not whole: both parts of one, with all pages, or nothing."""
    for item, said in items.items():
        owner = Owner(item, item)
        try:
            found = {
                kept.part: "".join(
                    [
                        (await stores.outputs.read(owner, kept.output_id, page))[1]
                        for page in range(1, kept.pages + 1)
                    ]
                )
                for kept in await stores.outputs.listed(owner)
            }
        except (OSError, LookupError) as error:
            yield f"{item} cannot be read: {error!r}"
            continue
        if found != _bodies(item) and (found or said.steps):
            yield f"{item} has {[(part, len(body)) for part, body in found.items()]} after step {said.steps}"


# ---- pins: what a person has approved ------------------------------------------------------------------------


async def write_pin(stores: Stores, group: str, item: str) -> Written:
    """Approves one tool more of the server that all of the round approve tools of."""
    tool = from_json({"name": item, "description": f"{item} " * 20})

    def approve() -> bool:
        stamp, held = stores.pins.stamp(group), stores.pins.load(group)
        if held is None:
            return stores.pins.create(group, first_pins(ORIGIN, [tool]))
        return stores.pins.replace(group, held.approving(ORIGIN, [tool]), only=stamp)

    while not await asyncio.to_thread(approve):
        pass  # another broker was faster, and is known by now
    yield ""


async def wrong_pins(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for tools that were approved and are not, and for others."""
    try:
        pins = stores.pins.load(group)
    except PinError as error:
        yield str(error)
        return
    found = frozenset[str]() if pins is None else pins.tools.keys()
    for item, said in items.items():
        if said.steps and item not in found:
            yield f"{item} is not approved any more"
    for tool in found - items.keys():
        yield f"nobody has approved {tool}"


# ---- tokens --------------------------------------------------------------------------------------------------


def _is_revoked(item: str) -> bool:
    return int(item.rpartition("-")[2]) % 2 == 1


def _tools(item: str) -> list[str]:
    return [f"bench.{item}"]


async def write_token(stores: Stores, group: str, item: str) -> Written:
    """Makes a named token, and revokes every second one."""
    yield await asyncio.to_thread(stores.tokens.create, item, grants=Grant(tools=_tools(item)))
    if _is_revoked(item):
        await asyncio.to_thread(stores.tokens.revoke, item)
        yield ""


async def wrong_tokens(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for tokens that are lost, that are good after they were revoked, or that grant something else."""
    for item, said in items.items():
        grant = stores.tokens.grant_of(NAMED + item)
        tools = list((grant.tools if grant is not None else None) or ())
        if tools not in ([], _tools(item)):
            yield f"{item} grants {tools}"
        if said.steps == 2 and tools:
            yield f"{item} was revoked and is good"
        is_good = bool(tools) and stores.tokens.name_of(said.text) == item
        # One that is to be revoked may be, and not yet said to be.
        if said.steps == 1 and not is_good and (tools or not _is_revoked(item)):
            yield f"{item} is not good any more"


# ---- logins --------------------------------------------------------------------------------------------------


def _login(scope: str) -> LoginRecord:
    last = scope.rpartition(" ")[2]
    client = OAuthClientInformationFull(client_id="bench", client_secret=f"secret of {last}")
    tokens = OAuthToken(access_token=f"access {last}", refresh_token=f"refresh {last}", scope=scope)
    return LoginRecord(server_url=URL, client=client, tokens=tokens, since=1.0)


async def write_login(stores: Stores, group: str, item: str) -> Written:
    """Renews the login that all of the round renew, one after the other; its scope says who has."""
    place = stores.login(group)
    async with place.locked(LOCK_SECONDS):
        held = await place.load()
        scope = held.tokens.scope if held is not None and held.tokens is not None else None
        renewed = _login(f"{scope} {item}" if scope else item)
        await place.save(renewed)

        async def is_written() -> bool:
            return await place.load() == renewed

        # While PostgreSQL is away, it is held, and written later.
        await _until(is_written)
    yield ""


async def wrong_logins(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for renewals that are lost, and for a login that is not whole."""
    try:
        held = await stores.login(group).load()
    except LoginStoreError as error:
        yield str(error)
        return
    scope = (held.tokens.scope if held is not None and held.tokens is not None else None) or ""
    if held is not None and held != _login(scope):
        yield f"the login of {group} is put together of several"
    for item, said in items.items():
        if said.steps and item not in scope.split():
            yield f"the login of {group} was renewed by {item}, and is older"


# ---- shapes of results ---------------------------------------------------------------------------------------


def _key(group: str) -> ToolKey:
    return ToolKey("bench", group, "0" * 16)


async def write_shape(stores: Stores, group: str, item: str) -> Written:
    """Sees one result more of the tool that all of the round see results of, each broker those of one shape."""
    value = shape_of([{"id": item, broker_of(item): 1}])
    seen = Observation(value=value, samples=1, first_seen=1.0, last_seen=1.0)
    await stores.learning(stores.memory.add, _key(group), seen)
    await _until(lambda: stores.learning(stores.memory.write))
    yield ""


async def wrong_shapes(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for results that were seen and do not count, or count twice, and for shapes that are lost."""
    held = stores.memory.known.get(_key(group))
    certain = [item for item, said in items.items() if said.steps]
    samples = 0 if held is None else held.samples
    if not len(certain) <= samples <= len(items):
        yield f"{samples} results of {group} are known, of {len(certain)} to {len(items)}"
    known = set[str]() if held is None else set(to_schema(held.value)["properties"])
    for name in {broker_of(item) for item in certain} - known:
        yield f"the shape of what {name} has seen is lost"


# ---- quotas --------------------------------------------------------------------------------------------------


async def write_use(stores: Stores, group: str, item: str) -> Written:
    """Counts one use more of the quota that all of the round use, as a strict one does before a call."""
    if await stores.counts.take(group, PERIOD_MS, 1 << 30) is not None:
        raise AssertionError(f"the quota of {group} is used up")
    yield ""


async def wrong_uses(stores: Stores, group: str, items: Mapping[str, Said]) -> Faults:
    """Looks for uses that do not count, or count twice."""
    rows = PostgresDatabase(stores.shared.server, count_rows.KIND, count_rows.MIGRATIONS)
    used = CountRows(rows, count_rows.POSTGRES_NOW).add(group, PERIOD_MS, 0).used
    certain = sum(said.steps for said in items.values())
    if not certain <= used <= len(items):
        yield f"{used} uses of {group} are counted, of {certain} to {len(items)}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Describes one kind.

    Args:
        write: Writes an item of a round; yields when a step is certain. Raises StoreError, CellblockError or OSError:
            It was refused.
        wrong: Yields what is wrong with a round's items, of those that were begun.
    """

    write: Callable[[Stores, str, str], Written]
    wrong: Callable[[Stores, str, Mapping[str, Said]], Faults]


KINDS: Final[Mapping[str, Kind]] = {
    "runs": Kind(write_run, wrong_runs),
    "outputs": Kind(write_output, wrong_outputs),
    "pins": Kind(write_pin, wrong_pins),
    "tokens": Kind(write_token, wrong_tokens),
    "logins": Kind(write_login, wrong_logins),
    "shapes": Kind(write_shape, wrong_shapes),
    "quotas": Kind(write_use, wrong_uses),
}
