"""Completion: what bash is given works in a real bash, and asks this program."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import CELLBLOCK, write_config


def printed(shell: str) -> str:
    done = subprocess.run([CELLBLOCK, "completion", shell], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def completed(line: str, folder: Path) -> list[str]:
    """What a real bash offers at the end of a line, by the function that the script has registered."""
    script = folder / "completion.bash"
    if not script.exists():
        script.write_text(printed("bash"))
    driver = f"""
        source {script}
        COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9
        read -ra COMP_WORDS <<< "$COMP_LINE"
        [[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        spec=$(complete -p cellblock)
        [[ $spec =~ -F\\ ([^ ]+) ]]
        "${{BASH_REMATCH[1]}}" cellblock "${{COMP_WORDS[COMP_CWORD]}}" ""
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        [shutil.which("bash") or "bash", "--norc", "-c", driver],
        env={"PATH": f"{CELLBLOCK.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cellblock co", ["completion", "config", "connect"]),
        ("cellblock run --time", ["--timeout-ms"]),
        ("cellblock serve --profile ", ["default", "extended"]),
        ("cellblock import --from v", ["vscode"]),
        ("cellblock approve --config cellblock.json ", ["files", "wiki"]),
        ("cellblock approve --config missing.json ", []),
        ("cellblock search --config cellblock.json --server w", ["wiki"]),
    ],
)
def test_what_bash_offers(line: str, offered: list[str], tmp_path: Path) -> None:
    write_config(
        tmp_path, {"files": {"command": "x"}, "wiki": {"url": "http://x", "headers": {"K": "${NOT_SET}"}}}
    )
    found = [word for word in completed(line, tmp_path) if not word.startswith("-") or "--" in line[-8:]]
    assert found == offered


def test_every_shell_is_given_something_of_its_own(tmp_path: Path) -> None:
    texts = {shell: printed(shell) for shell in ("bash", "zsh", "fish")}
    assert "#compdef cellblock" in texts["zsh"] and "complete" in texts["fish"]
    for shell, text in texts.items():
        assert "cellblock" in text
        if (program := shutil.which(shell)) is not None:
            file = tmp_path / shell
            file.write_text(text)
            assert subprocess.run([program, "-n", file], timeout=20).returncode == 0


def test_completion_does_not_load_what_it_does_not_need() -> None:
    loaded = "import sys, cellblock.cli; print('pydantic' in sys.modules, 'mcp' in sys.modules, 'zmq' in sys.modules)"
    done = subprocess.run(
        [CELLBLOCK.parent / "python", "-c", loaded], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["False"] * 3, done.stderr
