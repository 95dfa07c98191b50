"""Hosts that refuse to serve: at the broker's start that is an error, later it is one more death."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock import Broker
from cellblock.base.errors import HostUnavailable
from support.brokers import host_of
from support.entries import settings
from support.responses import succeeded
from support.waits import until, within

pytestmark = pytest.mark.real_host


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[[], int]]:
    """Given the numbers of the starts at which the host exits like one whose self-test gave no outcome: how many
    starts there were so far."""
    counter, refuse, program = tmp_path / "starts", tmp_path / "refuse", tmp_path / "python"
    refuse.write_text("")
    program.write_text(
        f"""#!/bin/sh
echo start >> {shlex.quote(str(counter))}
if grep -qx "$(($(wc -l < {shlex.quote(str(counter))})))" {shlex.quote(str(refuse))}; then
  echo "cellblock_worker refuses to serve: the self-test gave no outcome: it said nothing" >&2
  exit 3
fi
exec {shlex.quote(sys.executable)} "$@"
"""
    )
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))

    def at(*starts: int) -> Callable[[], int]:
        refuse.write_text("".join(f"{start}\n" for start in starts))
        return lambda: len(counter.read_text().splitlines())

    return at


async def test_a_host_that_refuses_after_one_has_served_is_started_again(
    refusing: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    """The soak found it: a self-test that was killed left the broker without a host for ever."""
    starts = refusing(2, 3)
    async with Broker(settings(tmp_path / "state")) as broker:
        host_of(broker).kill()
        await until(lambda: not broker.hosts, "the death is noticed")
        assert succeeded(await within(broker.run("globalThis.__codemode_result__ = 1;"))) == 1
    assert starts() == 4


async def test_a_first_host_that_refuses_is_an_error_at_once(
    refusing: Callable[..., Callable[[], int]], tmp_path: Path
) -> None:
    starts = refusing(1)
    with pytest.raises(HostUnavailable, match="the self-test gave no outcome"):
        await within(Broker(settings(tmp_path / "state")).__aenter__())
    assert starts() == 1
