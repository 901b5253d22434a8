# SPDX-License-Identifier: Apache-2.0
"""Guides tried in a process of their own, with a real process and a stand-in for the compiler."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textlib import guide_trials
from textlib.errors import EngineFailedError, RequestError
from textlib.guide_trials import GuideTrials
from textlib.request_tensors import Guide

pytestmark = pytest.mark.timed

PROGRAM = str(Path(__file__).parent / "trying_compiler.py")
PATIENCE = 60.0
Start = Callable[..., GuideTrials]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts them; their processes end with the test.

    No time passes unless a test has a clock: beside others, a process may get no processor for as
    long as one is given up after.
    """
    begun: list[GuideTrials] = []

    def begin(load: str = "good", clock: Callable[[], float] = lambda: 0.0) -> GuideTrials:
        trials = GuideTrials((PROGRAM,), {"load": load}, clock)
        begun.append(trials)
        return trials

    yield begin
    for trials in begun:
        trials.close()


def settle(trials: GuideTrials, guide: Guide) -> None:
    """Wait for the verdict; raises it."""
    until = time.monotonic() + PATIENCE
    while not trials.passed(guide):
        assert time.monotonic() < until
        trials.wait(0.05)


def regex(text: str) -> Guide:
    """A guide that the stand-in obeys."""
    return Guide("regex", text)


def test_a_guide_that_compiles_is_remembered(start: Start) -> None:
    """Asking does not wait; afterwards nobody is asked any more."""
    trials = start()
    assert not trials.passed(regex("good é"))
    settle(trials, regex("good é"))
    # Without memory, the kernel ends it before the engine.
    assert Path(f"/proc/{trials.pid}/oom_score_adj").read_text("ascii") == "1000\n"
    trials.close()
    assert trials.passed(regex("good é"))
    assert not trials.passed(Guide("ebnf_grammar", "good é"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("bad", "guided_decoding_guide is refused: It is not closed."),
        ("loop", "guided_decoding_guide takes more than 2 s to compile. Send a simpler one."),
        ("memory", "guided_decoding_guide takes more than 512 MB to compile. Send a simpler one."),
        ("crash", "too much time or memory: its compiler ended with -11. Send a simpler one."),
    ],
)
def test_a_guide_that_does_not_is_the_request_s(start: Start, text: str, says: str) -> None:
    """The next ones are tried as ever; the bad one is not tried again."""
    trials = start()
    trials.passed(regex(text))
    trials.passed(regex("behind"))
    with pytest.raises(RequestError, match=says.replace(".", r"\.")):
        settle(trials, regex(text))
    settle(trials, regex("behind"))
    trials.close()
    with pytest.raises(RequestError, match="guided_decoding_guide"):
        trials.passed(regex(text))


def test_a_compiler_that_says_nothing_is_given_up(start: Start) -> None:
    """One that gets no processor, or waits for something."""
    now = 0.0
    trials = start(clock=lambda: now)
    settle(trials, regex("good"))
    trials.passed(regex("sleep"))
    now = guide_trials.SILENCE_SECONDS + 1
    with pytest.raises(RequestError, match="ended with -9"):
        settle(trials, regex("sleep"))


@pytest.mark.parametrize(
    ("load", "says"), [("refused", "no vocabulary"), ("crash", "ended with 7")]
)
def test_without_a_compiler_no_guide_passes(start: Start, load: str, says: str) -> None:
    """It is the engine's failure, and the next request tries again."""
    trials = start(load)
    for _ in range(2):
        with pytest.raises(EngineFailedError, match=f"guides cannot be compiled: .*{says}"):
            settle(trials, regex("good"))


def test_a_process_that_was_killed_is_replaced(start: Start) -> None:
    """While it had nothing to do."""
    trials = start()
    settle(trials, regex("one"))
    assert trials.pid is not None
    os.kill(trials.pid, 9)
    os.waitid(os.P_PID, trials.pid, os.WEXITED | os.WNOWAIT)
    settle(trials, regex("two"))


def test_what_a_compiler_remembers_is_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial's process is replaced in time; the engine reports the memory that it took."""
    monkeypatch.setattr(guide_trials, "_REPLACED_BYTES", 30 << 20)
    trials = start()
    settle(trials, regex("keep 20"))
    first = trials.pid
    assert 20 << 20 <= trials.compiled_bytes < 25 << 20
    settle(trials, regex("keep 20 more"))
    assert trials.pid is None
    settle(trials, regex("keep 0"))
    assert trials.pid != first
    assert 40 << 20 <= trials.compiled_bytes < 50 << 20
    trials.begin_anew()
    assert trials.compiled_bytes == 0
    assert not trials.passed(regex("keep 0"))


def test_what_is_known_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide that was asked for least recently is forgotten."""
    monkeypatch.setattr(guide_trials, "MOST_KNOWN", 2)
    trials = start()
    for text in ("one", "two", "one", "three"):
        settle(trials, regex(text))
    trials.close()
    assert trials.passed(regex("one"))
    assert trials.passed(regex("three"))
    assert not trials.passed(regex("two"))
