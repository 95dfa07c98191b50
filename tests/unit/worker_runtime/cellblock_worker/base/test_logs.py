"""Logs that are bounded files."""

import os
import subprocess
import sys
from pathlib import Path

from cellblock_worker.base.logs import LOG_BYTES, bound_log


def test_a_full_log_is_started_anew(tmp_path: Path) -> None:
    file = tmp_path / "host.log"
    with file.open("ab", buffering=0) as log:
        log.write(b"x" * LOG_BYTES)
        bound_log(log.fileno())
        assert file.stat().st_size == LOG_BYTES
        log.write(b"x")
        bound_log(log.fileno())
        log.write(b"new")
    assert file.read_bytes() == b"new"


def test_what_is_no_file_is_left_alone() -> None:
    reading, writing = os.pipe()
    bound_log(writing)
    os.close(reading)
    os.close(writing)
    bound_log(writing)


def test_a_process_that_logs_keeps_its_stderr_bounded(tmp_path: Path) -> None:
    file = tmp_path / "host.log"
    code = (
        "import logging; from cellblock_worker.base.logs import BoundedStderr;"
        "logging.basicConfig(handlers=[BoundedStderr()]);"
        f"[logging.error('y' * {LOG_BYTES // 4}) for _ in range(9)]; logging.error('last')"
    )
    with file.open("ab") as log:
        subprocess.run([sys.executable, "-c", code], stderr=log, check=True, timeout=120)
    assert file.stat().st_size < 2 * LOG_BYTES
    assert file.read_text().endswith("last\n")
