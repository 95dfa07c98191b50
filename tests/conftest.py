"""Fixtures that every folder of tests may use. The public MCP servers are in `support/public_servers.py`."""

import gc
import logging
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

# --import-mode=importlib puts no folder on sys.path; test modules import `support` by name, and what lies in `scripts`.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "scripts"))

from support.cellblock_zygote import fork_hosts, forked_python
from support.entries import REUSE

pytest_plugins = [
    "support.clauses",
    "support.postgresql",
    "support.public_servers",
    "support.retries",
    "support.ring",
    "support.scripted_broker",
    "support.shared_rows",
    "support.identity_provider",
    "security.native.fixtures",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for what is true of runs in contexts, too: tests/conformance, tests/security/test_cases.py."""
    parser.addoption(
        "--deaths",
        type=int,
        default=1,
        help="how many durable runs tests/integration/test_journal.py has lose broker and host",
    )
    parser.addoption("--reuse", action="store_true", help="let runs of one principal share a process")


def pytest_configure(config: pytest.Config) -> None:
    """Has brokers under test reuse processes; has the processes of a test run fork from one."""
    if config.getoption("--reuse"):
        REUSE["reuse"] = "principal"
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        forked_python()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Has the garbage collector look at no test while they are collected, nor later: that is a million objects, which
    stay as long as the process. Each process that runs tests would take 2 s more to collect them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Has brokers fork their hosts, where a test is not of hosts."""
    forks = item.nodeid.startswith(("tests/integration/", "tests/unit/broker/"))
    fork_hosts(forks and item.get_closest_marker("real_host") is None)


# A loaded machine must not turn a slow example into a failure; pytest's own timeout still holds.
for profile, most in (("cellblock", 40), ("thorough", 200)):
    hypothesis.settings.register_profile(
        profile, max_examples=most, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
hypothesis.settings.load_profile("cellblock")

# A shell's background job ignores SIGINT, and what it starts inherits that; programs under test must not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """As `tmp_path`, with a path that leaves room for a socket's name, however deep the tests' own folder is."""
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Cellblock is asyncio all through; session scope, so that fixtures of any scope may be async."""
    return "asyncio"


@pytest.fixture(scope="module")
def records() -> Generator[list[str]]:
    """Every log record of this process in a file of tests, formatted."""
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(f"{record.levelname} {record.name} {self.format(record)}")

    handler, root = Keep(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield kept
    root.setLevel(level)
    root.removeHandler(handler)
