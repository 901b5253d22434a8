# SPDX-License-Identifier: Apache-2.0
"""Records are read whole, or the line that is wrong is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loadtest_records import SyntheticRun
from tritonctl.errors import ConfigurationError
from tritonctl.loadtest.analysis.records import read_lines, read_records


def line(**changes: Any) -> str:
    """A record of three tokens in two responses."""
    record: dict[str, Any] = {
        "i": 0,
        "class": "short",
        "planned": 1000,
        "sent": 1010,
        "at": [5000, 7000],
        "n": [1, 2],
        "end": 7100,
        "outcome": "ok",
        "in": 3,
        "out": 3,
        "worker": 0,
        "session": None,
        "turn": None,
    }
    return json.dumps(record | changes)


def write(folder: Path, *lines: str, name: str = "records.jsonl") -> Path:
    """A file of these lines."""
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in lines), encoding="utf-8")
    return path


def test_a_record(tmp_path: Path) -> None:
    """Every field; one that nobody knows yet is no harm."""
    failure = {"kind": "UNAVAILABLE", "message": "full"}
    write(
        tmp_path,
        line(i=1, planned=2000, sent=2000, at=[], n=None, end=2100, outcome="error", error=failure),
        line(new="field", session="s1", turn=2),
    )
    first, second = read_records(tmp_path)
    assert (first.index, first.class_name, first.planned, first.sent) == (0, "short", 1000, 1010)
    assert (first.at, first.tokens, first.end) == ((5000, 7000), (1, 2), 7100)
    assert (first.input_tokens, first.output_tokens, first.session, first.turn) == (3, 3, "s1", 2)
    assert second.error is not None
    assert (second.error.kind, second.error.message) == ("UNAVAILABLE", "full")


@pytest.mark.parametrize("kept", [0.2, 0.9, 1.0])
def test_a_cut_last_line(tmp_path: Path, kept: float) -> None:
    """Left out where its writer was killed; a whole one without a line break counts."""
    path = write(tmp_path, line(), line(i=1))
    text = path.read_text(encoding="utf-8").rstrip("\n")
    path.write_text(text[: len(text) - int(len(line(i=1)) * (1 - kept))], encoding="utf-8")
    assert len(read_records(tmp_path)) == (2 if kept == 1 else 1)


def test_workers_before_they_are_merged(tmp_path: Path) -> None:
    """In the order of the plan, whoever wrote them; the merged file, where there is one."""
    run = SyntheticRun(seconds=3, workers=3)
    parts = read_records(SyntheticRun(seconds=3, workers=3, merged=False).write(tmp_path / "parts"))
    assert parts == read_records(run.write(tmp_path / "merged"))
    assert {record.worker for record in parts} == {0, 1, 2}
    assert [record.index for record in parts] == list(range(len(parts)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"i": 0', "not JSON"),
        ("[]", "expected a section of keys, got `[]`"),
        (line(sent="soon"), "`sent`: expected a whole number, got `soon`"),
        (line(outcome="fine"), "`outcome`: expected 'ok', 'error'"),
        (line(n=[1]), "2 responses"),
        (line(at=[7000, 5000]), "not in chronological order"),
        (line(end=10), "not in chronological order"),
    ],
)
def test_a_broken_line(tmp_path: Path, text: str, problem: str) -> None:
    """Named by file and number: only the end of a file may be cut."""
    path = write(tmp_path, line(), text, line(i=2))
    with pytest.raises(ConfigurationError) as caught:
        read_records(tmp_path)
    assert caught.value.problem.startswith(f"{path}:2: ")
    assert problem in caught.value.problem
    assert "run the load test again" in caught.value.remedy


def test_no_records(tmp_path: Path) -> None:
    """Not the folder of a run."""
    with pytest.raises(ConfigurationError, match=r"has no records\.jsonl") as caught:
        read_records(tmp_path)
    assert "tritonctl loadtest run" in caught.value.remedy


def test_an_unreadable_file(tmp_path: Path) -> None:
    """A folder in its place (root may read everything else)."""
    (tmp_path / "records-0.jsonl").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        read_records(tmp_path)


def test_lines_of_other_files(tmp_path: Path) -> None:
    """None where there is no file; objects only."""
    assert read_lines(tmp_path / "progress.jsonl") == []
    path = write(tmp_path, '{"t": 1}', "", "7", name="progress.jsonl")
    with pytest.raises(ConfigurationError, match=f"{path}:3: not a JSON object"):
        read_lines(path)
    path = write(tmp_path, "{", '{"t": 1}', name="progress.jsonl")
    with pytest.raises(ConfigurationError, match=f"{path}:1: Expecting"):
        read_lines(path)
