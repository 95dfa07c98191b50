"""The state folder: where it is, whose it is, and what its files hold."""

import logging
import os
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.kept import KeptByIdentity, Newest
from cellblock.base.state_dir import MARK_NAME, check_state_dir, prepare_state_dir
from cellblock.base.store import opened_file
from cellblock.types.learning.store import TABLES, Observations


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_made_private_and_marked(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    assert check_state_dir(state) is None and not state.exists()
    prepare_state_dir(state)
    prepare_state_dir(state)
    assert names(state) == [MARK_NAME, "logs"]
    assert {path.stat().st_mode & 0o777 for path in (state, state / "logs")} == {0o700}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_is_refused_with_what_to_do(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    for refuse in (check_state_dir, prepare_state_dir):
        with pytest.raises(
            ConfigError, match=r"another user \(uid 12345\).*chown 0 .*or use another --state-dir"
        ):
            refuse(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_roots(tmp_path: Path) -> None:
    # Wherever the folders of tests are: the other user must come as far.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(0o755)
    (tmp_path / "state").mkdir()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setuid(12345)
            prepare_state_dir(tmp_path / "state")
        except ConfigError as error:
            os._exit(7 if "belongs to another user (uid 0)" in str(error) else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_one_that_all_may_write_to_is_refused_and_its_groups_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o1777)
    for refuse in (check_state_dir, prepare_state_dir):
        with pytest.raises(ConfigError, match=r"All users may write .*\(mode 1777\).*chmod 700"):
            refuse(tmp_path)
    assert names(tmp_path) == []
    tmp_path.chmod(0o770)
    assert "chmod g-w" in (check_state_dir(tmp_path) or "")
    with caplog.at_level(logging.WARNING):
        prepare_state_dir(tmp_path)
    assert "The group of the state directory" in caplog.text


def test_it_may_be_a_link_as_the_user_has_named_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")
    prepare_state_dir(tmp_path / "state")
    assert names(tmp_path / "real") == [MARK_NAME, "logs"]


def test_one_without_a_mark_that_has_a_store_is_cellblocks(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/host.log").touch()
    Observations(opened_file(tmp_path / "schemas.sqlite3", TABLES)).close()
    prepare_state_dir(tmp_path)
    assert MARK_NAME in names(tmp_path)


@pytest.mark.parametrize("name", ["logs/host.log", "logs/upstream-files.log", "schemas.sqlite3"])
def test_a_strangers_file_at_a_name_that_is_written_to_is_refused(tmp_path: Path, name: str) -> None:
    """As in a project with logs of its own; once the directory is in use, such files are Cellblock's."""
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / name).write_text("precious")
    with pytest.raises(ConfigError, match=f"{name} is not a file that Cellblock has made. Move it away"):
        prepare_state_dir(tmp_path)
    assert MARK_NAME not in names(tmp_path)
    text = (tmp_path / name).read_text()
    (tmp_path / name).unlink()
    prepare_state_dir(tmp_path)
    (tmp_path / name).write_text(text)
    prepare_state_dir(tmp_path)


def test_each_object_has_its_own_and_the_one_unused_for_longest_goes() -> None:
    made: list[list[int]] = []

    def make(item: list[int], more: int = 0) -> tuple[int, int]:
        made.append(item)
        return len(item), more

    kept = KeptByIdentity(make, 2)
    one, alike, third = [1], [1], [1, 2]
    assert kept.get_or_make(one, 5) == (1, 5)
    assert kept.get_or_make(alike) == (1, 0)
    assert kept.get_or_make(one) is kept.get_or_make(one, 7)
    assert kept.get_or_make(third) == (2, 0) and kept.size == 2
    assert kept.get_or_make(one) == (1, 5) and len(made) == 3
    assert kept.get_or_make(alike) == (1, 0) and made[3] is alike


def test_the_value_that_was_set_before_all_others_goes() -> None:
    kept = Newest[str, int](2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}
    assert kept.pop("a") == 3 and kept.get("b") is None
    kept["d"] = 5
    assert list(kept) == ["c", "d"]
