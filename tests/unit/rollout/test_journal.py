# SPDX-License-Identifier: Apache-2.0
"""A rollout's journal: written before it is done, read after a crash, held by one controller."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tritonctl.errors import ConfigurationError, HostError
from tritonctl.rollout.journal import (
    JOURNAL,
    Journal,
    JournalEntry,
    JournalEvent,
    RolloutPhase,
    last_rollout_number,
    open_journal,
    read_journal,
    replay,
)

STARTED = JournalEntry(100.0, JournalEvent.STARTED, {"stable": 3, "candidate": 4})
STEPS = [
    JournalEntry(101.0, JournalEvent.STEP, {"step": 0, "share": 1}),
    JournalEntry(102.0, JournalEvent.DECISION, {"standing": "healthy", "figures": {"total": 1.0}}),
    JournalEntry(161.0, JournalEvent.STEP, {"step": 1, "share": 5}),
]


def write(rollouts: Path, entries: list[JournalEntry], number: int = 1) -> Path:
    """A journal's folder."""
    with open_journal(rollouts, number) as (journal, _):
        for entry in entries:
            journal.add(entry)
    return rollouts / str(number)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Also by the next controller, who adds to it."""
    folder = write(tmp_path, [STARTED, *STEPS])
    assert read_journal(folder) == [STARTED, *STEPS]
    with open_journal(tmp_path, 1) as (journal, before):
        assert before == [STARTED, *STEPS]
        journal.add(JournalEntry(170.0, JournalEvent.ROLLED_BACK, {"reason": "it fails"}))
    state = replay(read_journal(folder))
    assert state is not None
    assert (state.phase, state.reason, state.step) == (RolloutPhase.ROLLED_BACK, "it fails", 1)
    assert last_rollout_number(tmp_path) == 1


@pytest.mark.parametrize(
    ("then", "phase", "step", "since"),
    [
        ([], RolloutPhase.STARTING, None, None),
        (STEPS[:1], RolloutPhase.STEPPING, 0, 101.0),
        (STEPS, RolloutPhase.STEPPING, 1, 161.0),
        ([*STEPS, JournalEntry(165.0, JournalEvent.PAUSED)], RolloutPhase.HOLDING, 1, 161.0),
        (
            [JournalEntry(1.0, JournalEvent.PAUSED), JournalEntry(2.0, JournalEvent.RESUMED)],
            RolloutPhase.STARTING,
            None,
            None,
        ),
        (
            [*STEPS, JournalEntry(165.0, JournalEvent.PROMOTED), STEPS[0]],
            RolloutPhase.PROMOTED,
            1,
            165.0,
        ),
    ],
)
def test_replaying(
    then: list[JournalEntry], phase: RolloutPhase, step: int | None, since: float | None
) -> None:
    """A journal that ends anywhere says where the rollout stood."""
    state = replay([STARTED, *then])
    assert state is not None
    assert (state.phase, state.step, state.since) == (phase, step, since)
    assert state.details == {"stable": 3, "candidate": 4}
    assert replay(then) is None  # without its first line


def test_a_torn_line_at_every_byte(tmp_path: Path) -> None:
    """A crash in the midst of a write loses that line alone; the next one is whole again."""
    folder = write(tmp_path, [STARTED, STEPS[0]])
    file = folder / JOURNAL
    content = file.read_bytes()
    first = content.index(b"\n") + 1
    for length in range(first, len(content)):
        file.write_bytes(content[:length])
        assert read_journal(folder) == [STARTED]
        with open_journal(tmp_path, 1) as (journal, before):
            assert before == [STARTED]
            journal.add(STEPS[2])
        assert read_journal(folder) == [STARTED, STEPS[2]]


@pytest.mark.parametrize("line", [b"{}", b"[]", b"\xff", b'{"at":1,"event":"step"}', b"[" * 99999])
def test_a_damaged_line(tmp_path: Path, line: bytes) -> None:
    """An error names the place of a damaged line, unless it is the torn last one."""
    folder = write(tmp_path, [STARTED])
    with (folder / JOURNAL).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ConfigurationError, match=r"journal\.jsonl:2 is not a journal line"):
        read_journal(folder)


def test_no_journal(tmp_path: Path) -> None:
    """Nothing has happened."""
    assert read_journal(tmp_path / "7") == []
    assert replay([]) is None
    assert last_rollout_number(tmp_path) is None


def _refused(rollouts: Path, answer: multiprocessing.SimpleQueue[str]) -> None:
    try:
        with open_journal(rollouts, 2):
            answer.put("")
    except HostError as error:
        answer.put(error.problem)


def test_one_controller(tmp_path: Path) -> None:
    """A second process is refused, also with another rollout, as long as the first one lives."""
    fresh = multiprocessing.get_context("spawn")
    answer = fresh.SimpleQueue()
    with open_journal(tmp_path, 1):
        other = fresh.Process(target=_refused, args=(tmp_path, answer))
        other.start()
        assert "another controller runs a rollout: process " in answer.get()
        other.join()
    with open_journal(tmp_path, 2) as (journal, before):
        assert isinstance(journal, Journal)
        assert before == []
