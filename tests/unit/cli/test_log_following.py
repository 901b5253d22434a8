# SPDX-License-Identifier: Apache-2.0
"""`tritonctl logs -f` and `tritonctl logs MODEL`: across rotations, and of one model."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.commands import run_here
from tests.unit.runtimes.docker.test_container_capacity import SERVER
from tritonctl.runtimes.server_log import LogReader, ModelLineFilter, archive_log

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import Cli, Sandbox, WaitUntil

# As tritonserver 2.51 wrote them.
LOG = """\
I1125 16:22:03.404673 19099 model_lifecycle.cc:472] "loading: speller_engine:1"
I1125 16:22:03.411159 19099 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: speller_engi\
ne_0_0 (CPU device 0)"
I1125 16:22:03.411159 19099 model_lifecycle.cc:472] "loading: speller_2:1"
E1125 16:22:04.269237 19099 model_lifecycle.cc:642] "failed to load 'speller_engine' version 1: Int\
ernal: ModuleNotFoundError: No module named 'openvino_genai'

At:
  /repository/speller_engine/1/model.py(14): <module>
"
I1125 16:22:05.436548 19099 server.cc:674]
+-----------+---------+--------+
| Model     | Version | Status |
| speller   | 1       | READY  |
| speller_2 | 1       | READY  |
| model_repository_path[0] | /home/me/speller/model_repository |
2026-11-25T16:22:05Z 19099 I model_lifecycle.cc:839] "successfully loaded 'speller'"
a line that a model printed
I1125 16:22:05.453410 19099 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:35749"
"""


STEPS = ("tokenizer", "engine", "detokenizer")


def everything(_: str) -> bool:
    """No line is left out."""
    return True


def of(*names: str) -> list[str]:
    """The lines about models."""
    chosen = ModelLineFilter(names)
    return [line for line in LOG.splitlines() if chosen.matches(line)]


def test_lines_of_a_model() -> None:
    """Those that name it, with what follows them; neither another model's nor the server's."""
    lines = of("speller", "speller_engine")
    assert [line for line in lines if "_2" in line or "grpc_server" in line] == []
    assert len([line for line in lines if "speller_engine" in line]) == 4
    assert "At:" in lines
    assert "| speller   | 1       | READY  |" in lines
    assert "| Model     | Version | Status |" not in lines
    assert lines[-1] == "a line that a model printed"
    assert of("speller_2") == [line for line in LOG.splitlines() if "speller_2" in line]
    assert of("spell") == []
    assert [line for line in lines if "model_repository_path" in line] == []


def test_a_log_that_is_moved_aside(tmp_path: Path) -> None:
    """As `tritonctl up` does: the old one's last lines, then the new one from its beginning."""
    log = tmp_path / "triton.log"
    log.write_text("one\n", encoding="utf-8")
    with closing(LogReader(log)) as reader, log.open("a", encoding="utf-8") as old:
        assert reader.last_lines(9, everything) == ["one"]
        assert reader.new_lines() == []
        archive_log(log)
        old.write("last of the old\nhalf")
        old.flush()
        assert reader.new_lines() == ["last of the old"]  # there is no new one yet
        log.write_text("first of the new\n", encoding="utf-8")
        assert reader.new_lines() == ["half", "first of the new"]
        with log.open("a", encoding="utf-8") as new:
            new.write("second\n")
        assert reader.new_lines() == ["second"]


def test_a_log_that_is_cut_off(tmp_path: Path) -> None:
    """As logrotate's copytruncate does."""
    log = tmp_path / "triton.log"
    log.write_text("one\ntwo\n", encoding="utf-8")
    with closing(LogReader(log)) as reader:
        assert reader.last_lines(1, everything) == ["two"]
        os.truncate(log, 0)
        assert reader.new_lines() == []
        with log.open("a", encoding="utf-8") as new:
            new.write("three\n")
        assert reader.new_lines() == ["three"]


def test_half_a_line(tmp_path: Path) -> None:
    """It waits for its end, in the midst of a character, too."""
    log = tmp_path / "triton.log"
    text = "字\n".encode()
    log.write_bytes(b"a\n" + text[:2])
    with closing(LogReader(log)) as reader, log.open("ab") as more:
        assert reader.last_lines(9, everything) == ["a"]
        assert reader.partial_line == "\ufffd"
        assert reader.new_lines() == []
        more.write(text[2:])
        more.flush()
        assert reader.new_lines() == ["字"]


def test_following_across_a_restart(cli: Cli, sandbox: Sandbox, wait_until: WaitUntil) -> None:
    """The command goes on with the next server's log; of one model, with that model's lines."""
    log = sandbox.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True)
    loading = 'I1125 16:22:03.404673 1 model_lifecycle.cc:472] "loading: {}:1"\n'
    log.write_text(loading.format("speller") + loading.format("other"), encoding="utf-8")
    seen: list[str] = []
    with cli.start("logs", "speller", "-f") as process:
        assert process.stdout is not None
        reading = threading.Thread(target=lambda: seen.extend(process.stdout or ()))
        reading.start()
        wait_until(lambda: len(seen) == 1)
        archive_log(log)
        log.write_text(loading.format("other") + loading.format("speller_engine"), encoding="utf-8")
        wait_until(lambda: len(seen) == 2)
        process.terminate()
        reading.join()
    assert ["speller:1" in seen[0], "speller_engine:1" in seen[1]] == [True, True]


def test_containers_that_end(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Compose: it goes on while one restarts, and ends, exit code 0, when all have."""
    asked: list[tuple[str, ...]] = []

    def run(*words: str, on_line: Callable[[str], None], remedy: str) -> None:
        asked.append(words)
        for line in LOG.splitlines():
            on_line(line)

    monkeypatch.setattr("tritonctl.runtimes.server_state.read_state", lambda _: SERVER)
    compose = SimpleNamespace(run=run)
    monkeypatch.setattr("tritonctl.runtimes.docker.lifecycle.running_compose", lambda _: compose)
    sandbox.write()
    done = run_here("logs", "speller", "--follow", cwd=sandbox.root)
    assert done.returncode == 0
    assert done.stdout.splitlines() == of("speller", *(f"speller_{s}" for s in STEPS))
    assert "the containers have ended; `tritonctl up` starts them" in done.stderr
    once = run_here("logs", "--lines", "7", cwd=sandbox.root)
    assert once.stderr == ""
    assert [("--follow" in words, words[-1]) for words in asked] == [
        (True, SERVER.deployment.service),
        (False, SERVER.deployment.service),
    ]


def test_an_unknown_model(cli: Cli, sandbox: Sandbox) -> None:
    """Exit code 2, with the nearest one."""
    sandbox.write()
    done = cli("logs", "speler")
    assert done.returncode == 2
    assert "unknown model `speler`" in done.stderr
    assert "did you mean `speller`?" in done.stderr


def test_a_step(cli: Cli, sandbox: Sandbox) -> None:
    """What Triton serves may be asked for by its own name."""
    folder = sandbox.root / ".tritonctl" / "server"
    folder.mkdir(parents=True)
    (folder / "triton.log").write_text(LOG, encoding="utf-8")
    assert "At:" in cli("logs", "speller").stdout
    assert cli("logs", "speller", "-n", "1").stdout == "a line that a model printed\n"


@pytest.mark.parametrize("lines", [["-n", "0"], ["-n", "2"]])
def test_a_line_without_end(cli: Cli, sandbox: Sandbox, lines: list[str]) -> None:
    """Printed too, where nobody waits for its end."""
    log = sandbox.root / ".tritonctl" / "server" / "triton.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree", encoding="utf-8")
    assert cli("logs", *lines).stdout == ("" if lines[1] == "0" else "one\ntwo\nthree\n")
