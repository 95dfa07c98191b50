"""Who is let in."""

from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cellblock.base.admission import Admission, Ticket
from cellblock.base.errors import Overloaded


def waiting_of(admission: Admission[str], client: str) -> int:
    """Runs of one client that wait."""
    state = admission._clients.get(client)
    return len(state.tickets) if state else 0


def places_of(admission: Admission[str], client: str) -> int:
    """Places that one client holds."""
    state = admission._clients.get(client)
    return state.places if state else 0


def test_who_waits_may_not_start_a_newer_run_before() -> None:
    admission: Admission[str] = Admission(9)
    admission.join("a", "a0")
    assert not admission.may_start("a", free=1, reserve=0)
    assert admission.may_start("b", free=1, reserve=0)


def test_a_client_over_its_share_is_refused_and_others_are_not() -> None:
    admission: Admission[str] = Admission(queue_size=4)
    for number in range(2):
        admission.join("noisy", str(number))
    with pytest.raises(Overloaded, match=r"half of pool\.queue_size\); 2 runs wait in all") as refused:
        admission.join("noisy", "x")
    assert "2 runs waiting" in refused.value.message and refused.value.hint
    admission.join("quiet", "0")
    admission.join("third", "0")
    with pytest.raises(Overloaded, match=r"4 runs wait, .*queue_size\); 0 of them"):
        admission.join("fourth", "x")
    with pytest.raises(Overloaded, match=r"pool\.queue_size\); 2 of them"):
        admission.join("noisy", "x")
    assert admission.waiting == 4 and waiting_of(admission, "fourth") == 0 and len(admission._clients) == 3


def test_clear_gives_all_that_waits() -> None:
    admission: Admission[str] = Admission(9)
    for item in ("a0", "a1", "b0"):
        admission.join(item[0], item)
    admission.start("b")
    assert sorted(ticket.item for ticket in admission.clear()) == ["a0", "a1", "b0"]
    assert admission.waiting == 0 and places_of(admission, "b") == 1
    admission.end("b")
    assert not admission._clients


CLIENTS = st.sampled_from(["a", "b", "c", "d"])


class Turns(RuleBasedStateMachine):
    """Random clients, cancelled waits, places that come free: the pool's use of the queue, against a plain model."""

    @initialize(places=st.integers(1, 5), reserve=st.integers(0, 2), size=st.integers(0, 16))
    def start(self, places: int, reserve: int, size: int) -> None:
        self.places, self.reserve, self.size, self.share = places, reserve, size, -(-size // 2)
        self.admission: Admission[int] = Admission(size)
        self.lines: dict[str, deque[Ticket[int]]] = {name: deque() for name in "abcd"}
        self.running: Counter[str] = Counter()
        self.served: set[int] = set()
        self.number = 0
        # Since its own last lease: who has waited all along, and got none.
        self.passed_over: dict[str, set[str]] = {name: set() for name in "abcd"}

    @property
    def free(self) -> int:
        return self.places - self.running.total()

    def waits(self) -> set[str]:
        return {name for name, line in self.lines.items() if line}

    def got_a_place(self, client: str) -> None:
        for other in self.passed_over[client] & self.waits():
            assert self.running[other] > self.running[client], (client, other)
        self.running[client] += 1
        self.passed_over[client] = self.waits() - {client}
        for others in self.passed_over.values():
            others.discard(client)

    def let_in(self) -> None:
        while self.free > 0 and (ticket := self.admission.next_up(self.free, self.reserve)) is not None:
            assert self.lines[ticket.client][0] is ticket, "not first come, first served within a client"
            assert ticket.item not in self.served, "served twice"
            fewest = min(self.running[name] for name in self.waits())
            assert self.running[ticket.client] == fewest, "another client holds fewer places"
            assert fewest == 0 or self.free > self.reserve, "the reserve was given away"
            self.admission.admit(ticket)
            self.lines[ticket.client].popleft()
            self.served.add(ticket.item)
            self.got_a_place(ticket.client)
        if self.free > 0 and self.waits():
            assert self.free <= self.reserve and all(self.running[name] for name in self.waits()), (
                "a place is idle"
            )

    @rule(client=CLIENTS)
    def come(self, client: str) -> None:
        self.number += 1
        if self.free > 0 and self.admission.may_start(client, self.free, self.reserve):
            assert not self.lines[client]
            assert not self.running[client] or self.free > self.reserve, "the reserve was given away"
            self.admission.start(client)
            self.got_a_place(client)
            return
        full = sum(map(len, self.lines.values())) >= self.size or len(self.lines[client]) >= self.share
        try:
            ticket = self.admission.join(client, self.number)
        except Overloaded as refusal:
            assert full
            assert ("queue_size" in refusal.message) and str(len(self.lines[client])) in refusal.message
            return
        assert not full
        self.lines[client].append(ticket)
        for others in self.passed_over.values():
            # It has not waited since their last lease.
            others.discard(client) if len(self.lines[client]) == 1 else None

    @precondition(lambda self: self.running.total())
    @rule(number=st.integers(0, 20))
    def end(self, number: int) -> None:
        held = sorted(self.running.elements())
        client = held[number % len(held)]
        self.running[client] -= 1
        self.admission.end(client)
        self.let_in()

    @precondition(lambda self: self.waits())
    @rule(number=st.integers(0, 20), place=st.integers(0, 20))
    def give_up(self, number: int, place: int) -> None:
        client = sorted(self.waits())[number % len(self.waits())]
        line = self.lines[client]
        ticket = line[place % len(line)]
        line.remove(ticket)
        self.admission.leave(ticket)
        if not line:
            for others in self.passed_over.values():
                others.discard(client)

    @rule(places=st.integers(1, 5))
    def hosts_come_and_go(self, places: int) -> None:
        self.places = max(places, self.running.total())
        self.let_in()

    @invariant()
    def counts_agree(self) -> None:
        assert self.admission.waiting == sum(map(len, self.lines.values())) <= self.size
        for name, line in self.lines.items():
            assert waiting_of(self.admission, name) == len(line) <= self.share
            assert places_of(self.admission, name) == self.running[name]
        assert len(self.admission._clients) == sum(
            bool(line) or self.running[name] > 0 for name, line in self.lines.items()
        )

    def teardown(self) -> None:
        if not hasattr(self, "admission"):
            return
        left = {ticket.item for line in self.lines.values() for ticket in line}
        self.reserve = 0
        while self.waits():
            if self.free == 0:
                self.end(0)
            self.let_in()
        assert left <= self.served, "a run was lost"


Turns.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestTurns = Turns.TestCase
