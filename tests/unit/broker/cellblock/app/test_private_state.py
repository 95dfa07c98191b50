"""A broker in somebody's program keeps to itself, unless the program or the configuration says otherwise."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, ConfigError, Settings
from cellblock.app.config.load import parse_settings
from support.entries import write_config
from support.responses import succeeded
from support.waits import within

ONE = "globalThis.__codemode_result__ = 1;"


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a short path: the sockets of these brokers are in it."""
    return tmp_path_factory.mktemp("p")


@pytest.fixture(autouse=True)
def users(tmp_path: Path, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of the user; the temporary directory is another."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "users"))
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    return Settings().state_dir


def parsed(**cellblock: Any) -> Settings:
    return parse_settings({"cellblock": {"pool": {"warm": 1, "capacity": 1}, **cellblock}})


async def test_by_default_it_is_a_folder_of_its_own_that_ends_with_it(users: Path, short_path: Path) -> None:
    broker = Broker(parsed())
    folder = broker.settings.state_dir
    assert folder.parent == short_path
    assert not folder.exists(), "nothing is made before it begins"
    for _ in range(2):
        async with broker:
            assert folder.stat().st_mode & 0o777 == 0o700
            assert (folder / "logs").is_dir()
            assert succeeded(await within(broker.run(ONE))) == 1
            assert broker.reconfigure(parsed()) == [], "it stays the same folder"
        assert not folder.exists()
    assert not list(users.parent.glob("*"))
    assert Broker(parsed()).settings.state_dir != Broker(parsed()).settings.state_dir


async def test_it_is_what_the_configuration_or_the_program_names(users: Path, tmp_path: Path) -> None:
    own, configured = tmp_path / "own", tmp_path / "configured"
    file = write_config(tmp_path, {}, state_dir=str(configured))
    assert Broker.from_config(file).settings.state_dir == configured
    assert Broker.from_config(file, state_dir=own).settings.state_dir == own
    for given, expected in ((own, own), (str(own), own), ("user", users)):
        assert Broker.from_config(None, state_dir=given).settings.state_dir == expected
    async with Broker(parsed(), state_dir=own) as broker:
        assert broker.reconfigure(parsed()) == [], "it stays the same folder"
    assert (own / "logs").is_dir(), "what a program names stays"


@pytest.mark.parametrize("section", [{"audit": ["calls"]}, {"pins": {"reaction": "quarantine"}}])
def test_what_must_outlive_it_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="state_dir"):
        Broker(parsed(**section))
    assert Broker(parsed(**section), state_dir="user")


async def test_what_must_outlive_it_is_refused_later_too() -> None:
    async with Broker(parsed()) as broker:
        with pytest.raises(ConfigError, match="state_dir"):
            broker.reconfigure(parsed(pins={"reaction": "quarantine"}))


def test_the_users_word_on_tools_holds_for_it_all_the_same(users: Path, tmp_path: Path) -> None:
    assert Broker(parsed()).settings.overlay_dir == users / "overlays"
    own = parsed(schemas={"overlays": str(tmp_path / "words")})
    assert Broker(own).settings.overlay_dir == tmp_path / "words"
