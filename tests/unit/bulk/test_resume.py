# SPDX-License-Identifier: Apache-2.0
"""A run that ends early goes on: no line lost, none doubled, and never with another input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.task_server import TaskServer, task_server, vector
from tests.servers import wait_until
from tritonctl.bulk.lines import LineSource
from tritonctl.bulk.probe import is_same_model

pytestmark = pytest.mark.timed

if TYPE_CHECKING:
    from tests.unit.conftest import Cli

TEXTS = [f"{number} " * (1 + number * 7 % 23) for number in range(1200)]
WANTED = [vector(text.encode()) for text in TEXTS]


@pytest.fixture
def server() -> Iterator[TaskServer]:
    """One that takes a moment for each request."""
    with task_server() as server:
        server.before = lambda *_: time.sleep(0.004)
        yield server


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The texts, one on each line."""
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return file


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints of commands in this process come after each write."""
    monkeypatch.setattr("tritonctl.bulk.output._CHECKPOINT_SECONDS", 0.0)


# In a process of its own, whose checkpoints come as often.
OFTEN = """
import sys
from tritonctl.bulk import output
output._CHECKPOINT_SECONDS = 0.05
sys.argv[0] = "tritonctl"
from tritonctl.__main__ import main
main()
"""


def started(server: TaskServer, file: Path | None, output: Path, **options: Any) -> Any:
    """The command, in the background."""
    command = [sys.executable, "-c", OFTEN, "embed", "encoder", *([file] if file else [])]
    where = ["--output", str(output), "--url", server.url]
    return subprocess.Popen(
        [*map(str, command), *where],
        cwd=output.parent,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def lines_of(journal: Path) -> int:
    """How far a run has come, by its journal."""
    if not journal.exists():
        return 0
    return int(json.loads(journal.read_text())["reached"]["lines"])


def has_come(process: Any, journal: Path, lines: int) -> bool:
    """Whether it is further than these lines, or has ended."""
    return lines_of(journal) > lines or process.poll() is not None


def check(output: Path) -> None:
    """Exactly one line for each, in their order; nothing beside the file."""
    given = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["index"] for one in given] == list(range(len(TEXTS)))
    assert [one["embedding"] for one in given] == WANTED
    assert [path.name for path in output.parent.glob(f"{output.name}*")] == [output.name]


def finish(cli: Cli, server: TaskServer, file: Path, output: Path) -> str:
    """Run the command to its end; what it says."""
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 0, done.stderr
    check(output)
    return done.stderr


@pytest.mark.timeout(180)
def test_killed_again_and_again(cli: Cli, server: TaskServer, file: Path, tmp_path: Path) -> None:
    """SIGKILL at any moment; the next run goes on where the journal is."""
    output, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    reached = 0
    for least in (1, 600):
        process = started(server, file, output)
        come = partial(has_come, process, journal, max(least, reached))
        wait_until(come, "the run comes so far")
        process.kill()
        process.communicate()
        assert not output.exists()
        reached = lines_of(journal)
    assert reached > 600
    asked = sum(len(each["text_input"]) for each in server.requests)
    assert f"Continuing after {reached:,} lines." in finish(cli, server, file, output)
    again = sum(len(each["text_input"]) for each in server.requests) - asked
    assert again == len(TEXTS) - reached + 1  # and whether it is the same model


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(cli: Cli, server: TaskServer, file: Path, tmp_path: Path, number: int) -> None:
    """Exit code 130, and what is done is kept."""
    output, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    process = started(server, file, output)
    wait_until(partial(has_come, process, journal, 100), "the run comes so far")
    process.send_signal(number)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert f"interrupted: {lines_of(journal):,} lines are done and stored" in said
    finish(cli, server, file, output)


@pytest.mark.timeout(180)
def test_standard_input_goes_on(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same lines, piped in again, are passed over; others, or too few, are refused."""
    output, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    with file.open("rb") as lines:
        process = started(server, None, output, stdin=lines)
        wait_until(partial(has_come, process, journal, 100), "the run comes so far")
        process.kill()
        process.communicate()

    def pipe(content: bytes) -> subprocess.CompletedProcess[str]:
        source = LineSource.from_bytes("standard input", content)
        monkeypatch.setattr(LineSource, "open_path", lambda _: source)
        return cli("embed", "encoder", "--output", output, "--url", server.url)

    content = file.read_bytes()
    for other in (b"other\n" + content, content[:500]):
        done = pipe(other)
        assert done.returncode == 3, done.stderr
        assert "standard input differ from the lines of the first run" in " ".join(
            done.stderr.split()
        )
    done = pipe(content)
    assert done.returncode == 0, done.stderr
    assert "Continuing after" in done.stderr
    check(output)


def broken_off(cli: Cli, server: TaskServer, file: Path, output: Path) -> None:
    """A run that a bad line has ended amid the file."""
    texts = list(TEXTS)
    texts[800] = "BAD"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 2
    assert "line 801" in done.stderr
    assert not output.exists()


def test_on_at_a_bad_line(cli: Cli, server: TaskServer, file: Path, tmp_path: Path) -> None:
    """The command with `--on-error keep` goes on after the lines that are done."""
    output = tmp_path / "out.jsonl"
    broken_off(cli, server, file, output)
    before = sum(len(each["text_input"]) for each in server.requests)
    options = ("--output", output, "--url", server.url, "--on-error", "keep")
    done = cli("embed", "encoder", file, *options)
    assert done.returncode == 0, done.stderr
    given = [json.loads(line) for line in output.read_text().splitlines()]
    assert [one["index"] for one in given] == list(range(len(TEXTS)))
    assert [number for number, one in enumerate(given) if "error" in one] == [800]
    assert sum(len(each["text_input"]) for each in server.requests) - before < len(TEXTS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("--dimensions", "2"), "dimensions unset, not 2"),
        (("--encoding", "base64"), "encoding float, not base64"),
        (("--jsonl",), "jsonl False, not True"),
    ],
)
def test_other_options_are_refused(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path, change: tuple[str, ...], problem: str
) -> None:
    """Half a file of each would be worse than none; --force starts over."""
    output = tmp_path / "out.jsonl"
    broken_off(cli, server, file, output)
    where = ("--output", output, "--url", server.url)
    done = cli("embed", "encoder", file, *where, *change)
    assert done.returncode == 3
    assert f"was started with {problem}" in " ".join(done.stderr.split())
    assert (tmp_path / "out.jsonl.part").exists()
    done = cli("embed", "encoder", file, *where, *change, "--force", "--on-error", "keep")
    assert done.returncode == 0, done.stderr
    assert len(output.read_text().splitlines()) == len(TEXTS)


def test_another_input_is_refused(cli: Cli, server: TaskServer, file: Path, tmp_path: Path) -> None:
    """Even one of the same size, and behind what was read."""
    output = tmp_path / "out.jsonl"
    broken_off(cli, server, file, output)
    content = file.read_bytes()
    file.write_bytes(content[:-2] + b"x\n")
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 3
    assert "was started with another input" in " ".join(done.stderr.split())
    file.write_bytes(content)
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 2
    assert "line 801" in done.stderr


def test_another_model_under_its_name_is_refused(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path
) -> None:
    """One of another version or with other outputs; one that answers otherwise."""
    output = tmp_path / "out.jsonl"
    broken_off(cli, server, file, output)
    with task_server() as other:
        where = ("embed", "encoder", file, "--output", output, "--url", other.url)
        other.version = "2"
        done = cli(*where)
        assert done.returncode == 3
        assert "served version 1: " in " ".join(done.stderr.split())
        other.version, other.factor = "1", -500.0
        done = cli(*where)
        assert done.returncode == 3
        assert "encoder answers differently than when" in " ".join(done.stderr.split())
        other.factor = 1.01
        assert cli(*where, "--on-error", "keep").returncode == 0


@pytest.mark.parametrize(
    ("before", "now", "alike"),
    [
        ({}, {}, True),
        ({"0": 0.6, "1": 0.8}, {"0": 0.603, "1": 0.798}, True),
        ({"0": 0.6, "1": 0.8}, {"0": 0.8, "1": 0.6}, False),
        ({"0": 0.6, "1": 0.8}, {"0": 0.6}, False),
        ({"good": 0.97, "bad": 0.03}, {"good": 0.96, "bad": 0.04}, True),
        ({"good": 0.97, "bad": 0.03}, {"bad": 0.97, "good": 0.03}, False),
        ({"good": 0.9, "fine": 0.06}, {"good": 0.9, "other": 0.01}, False),
        ({"score": 2.0}, {"score": 2.01}, True),
        ({"score": 2.0}, {"score": 1.5}, False),
        ({"score": 0.0}, {"score": 0.0}, True),
    ],
)
def test_answers_of_one_model(before: dict[str, float], now: dict[str, float], alike: bool) -> None:
    """They vary by what shares a batch, not by more."""
    assert is_same_model(before, now) is alike
    assert is_same_model(now, before) is alike


def test_a_part_that_somebody_has_cut(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path
) -> None:
    """The journal knows better."""
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    broken_off(cli, server, file, output)
    part.write_bytes(part.read_bytes()[:-1])
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 3
    assert "is shorter than" in " ".join(done.stderr.split())


def test_what_came_after_the_checkpoint_counts_for_nothing(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path
) -> None:
    """As after a power cut: half a line, or a line too many."""
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    broken_off(cli, server, file, output)
    with part.open("ab") as behind:
        behind.write(b'{"index": 800, "embedding": [1.0')
    done = cli(
        *("embed", "encoder", file, "--output", output, "--url", server.url),
        *("--on-error", "keep"),
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["index"] for line in output.read_text().splitlines()] == list(
        range(len(TEXTS))
    )


def test_a_file_that_is_there_is_not_replaced(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path
) -> None:
    """Hours of work may be in it."""
    output = tmp_path / "out.jsonl"
    output.write_text("precious\n")
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 2
    assert "already exists" in done.stderr
    assert output.read_text() == "precious\n"
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url, "--force")
    assert done.returncode == 0, done.stderr
    check(output)


def test_two_at_once(cli: Cli, server: TaskServer, file: Path, tmp_path: Path) -> None:
    """The second one is refused; the first one's work is whole."""
    output, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl.journal"
    first = started(server, file, output)
    wait_until(lambda: lines_of(journal) > 0, "the first one writes")
    done = cli("embed", "encoder", file, "--output", output, "--url", server.url)
    assert done.returncode == 2
    assert "another tritonctl is writing" in done.stderr
    first.communicate()
    check(output)


def test_a_file_that_grows_meanwhile(
    cli: Cli, server: TaskServer, file: Path, tmp_path: Path
) -> None:
    """It is said at once: the lines behind would be missing, or half there."""
    grown: list[int] = []

    def grows(*_: Any) -> None:
        if not grown:
            grown.append(1)
            with file.open("a") as more:
                more.write("one more\n")

    server.before = grows
    done = cli("embed", "encoder", file, "--url", server.url)
    assert done.returncode == 3
    assert "was modified during the run" in " ".join(done.stderr.split())
