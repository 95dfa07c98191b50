"""`cellblock keygen` as a user runs it."""

import stat
import subprocess
from pathlib import Path

from cellblock_worker.wire.keys import read_key_file
from support.cellblock_zygote import forked_cellblock


def keygen(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(forked_cellblock()), "keygen", str(file)], capture_output=True, text=True, timeout=120
    )


def test_keygen_makes_a_private_file_once_and_prints_the_public_key(tmp_path: Path) -> None:
    file = tmp_path / "host.key"
    made = keygen(file)
    assert (made.returncode, made.stderr) == (0, "")
    pair = read_key_file(file)
    assert made.stdout == pair.public + "\n" and pair.secret.hex() not in made.stdout
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert keygen(file).stdout == made.stdout

    file.chmod(0o644)
    refused = keygen(file)
    assert refused.returncode == 2 and "chmod 600" in refused.stderr and refused.stdout == ""
    nowhere = keygen(tmp_path / "none" / "host.key")
    assert nowhere.returncode == 2 and "No such file" in nowhere.stderr
