# SPDX-License-Identifier: Apache-2.0
"""The README does what it says: its commands are run, its names exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from tests.engine_cache import build_cached
from tritonctl.cli import application
from tritonctl.project.file import load_project

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")
# This very run is one of them.
NOT_AGAIN = {"make test"}


def code_blocks(language: str) -> list[str]:
    """The code blocks of the README in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def copy_checkout(target: Path) -> Path:
    """A copy of what a clone would hold."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    for name in filter(None, listing.stdout.split("\0")):
        source = CHECKOUT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


def test_readme_is_short() -> None:
    """At most 120 lines: everything else is in docs/."""
    assert len(README.splitlines()) <= 120


def test_commands_of_the_readme_exist() -> None:
    """The reference has every command; the README names some of them."""
    verbs = set(get_command(application()).commands)  # type: ignore[attr-defined]
    assert set(re.findall(r"`(?:\.venv/bin/)?tritonctl ([a-z]+)\b", README)) <= verbs


# A verdict about P99 takes 140 s of load; that the command runs shows in a few.
BRIEFLY = "--duration 5"


@pytest.mark.server
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "loads", [BRIEFLY, pytest.param("", marks=pytest.mark.exhaustive, id="as written")]
)
def test_readme_commands_run(tmp_path: Path, loads: str) -> None:
    """Every shell command and the Python example, in a copy of the checkout, in order."""
    clone = copy_checkout(tmp_path / "clone")
    if loads:
        build_cached(load_project(clone))  # as written, the quickstart builds
    (clone / ".venv").symlink_to(Path(sys.prefix))  # what `make setup` makes, which this run is in
    commands = [line for block in code_blocks("sh") for line in block.splitlines()]
    commands = [line for line in commands if line and line not in NOT_AGAIN]
    assert commands[0] == "make quickstart"
    assert commands[-1].endswith("tritonctl down")
    environment = os.environ | {"PYTHON": sys.executable}
    outputs = {}
    for command in commands:
        if command == commands[-1]:
            outputs["python"] = run_python_example(clone)
        load_test = " loadtest run " in command
        words = f"{command.partition('#')[0]}{loads}" if load_test else command
        done = subprocess.run(
            ["/bin/sh", "-c", words],
            cwd=clone,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        # 9: on a busy machine a load test is no valid measurement, and says so.
        allowed = (0, 8, 9) if load_test else (0,)
        assert done.returncode in allowed, f"{command}: {done.stderr[-3000:]}"
        outputs[command] = done.stdout
    assert " seven thousand three hundred forty-two" in outputs["make quickstart"]
    assert outputs["python"] == " seven thousand three hundred forty-two"
    assert "ห้าร้อยสิบห้า" in "".join(outputs.values())


def run_python_example(clone: Path) -> str:
    """Output of the README's Python example, on the port that the quickstart got."""
    python = clone / ".venv" / "bin" / "python"
    find = "from pathlib import Path;from tritonctl.runtimes.lifecycle import running_server as r;"
    find += "from tritonctl.project.file import load_project as l;print(r(l(Path())).grpc_url)"
    found = subprocess.run([python, "-c", find], cwd=clone, check=True, capture_output=True)
    [example] = code_blocks("python")
    example = example.replace("127.0.0.1:8001", found.stdout.decode().strip())
    done = subprocess.run([python, "-c", example], cwd=clone, check=True, capture_output=True)
    return done.stdout.decode()
