# SPDX-License-Identifier: Apache-2.0
"""Guides tried in a process of their own, with a real process and a stand-in for the compiler."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from textlib.engine import guide_queue, guide_trials
from textlib.engine.guide_trials import GuideTrials
from textlib.errors import EngineFailedError, QueueFullError, RequestError
from textlib.triton.request_tensors import GuideSpec

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


def settle(trials: GuideTrials, guide: GuideSpec) -> None:
    """Wait for the verdict; raises it."""
    until = time.monotonic() + PATIENCE
    while not trials.is_accepted(guide):
        assert time.monotonic() < until
        trials.wait(0.05)


def regex(text: str) -> GuideSpec:
    """A guide that the stand-in obeys."""
    return GuideSpec("regex", text)


def test_a_guide_that_compiles_is_remembered(start: Start) -> None:
    """Asking does not wait; afterwards nobody is asked any more."""
    trials = start()
    assert not trials.is_accepted(regex("good é"))
    settle(trials, regex("good é"))
    # Without memory, the kernel ends it before the engine.
    assert Path(f"/proc/{trials.pid}/oom_score_adj").read_text("ascii") == "1000\n"
    trials.close()
    assert trials.is_accepted(regex("good é"))
    assert not trials.is_accepted(GuideSpec("ebnf_grammar", "good é"))


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
    trials.is_accepted(regex(text))
    trials.is_accepted(regex("behind"))
    with pytest.raises(RequestError, match=says.replace(".", r"\.")):
        settle(trials, regex(text))
    settle(trials, regex("behind"))
    trials.close()
    with pytest.raises(RequestError, match="guided_decoding_guide"):
        trials.is_accepted(regex(text))


def test_a_compiler_that_says_nothing_is_given_up(start: Start) -> None:
    """One that gets no processor, or waits for something."""
    now = 0.0
    trials = start(clock=lambda: now)
    settle(trials, regex("good"))
    trials.is_accepted(regex("sleep"))
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
    monkeypatch.setattr(guide_trials, "_RESTART_BYTES", 30 << 20)
    trials = start()
    settle(trials, regex("keep 20"))
    first = trials.pid
    assert 20 << 20 <= trials.compiled_bytes < 25 << 20
    settle(trials, regex("keep 20 more"))
    assert trials.pid is None
    settle(trials, regex("keep 0"))
    assert trials.pid != first
    assert 40 << 20 <= trials.compiled_bytes < 50 << 20
    trials.reset()
    assert trials.compiled_bytes == 0
    assert not trials.is_accepted(regex("keep 0"))


def test_what_is_known_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide that was asked for least recently is forgotten."""
    monkeypatch.setattr(guide_trials, "MAX_RESULTS", 2)
    trials = start()
    for text in ("one", "two", "one", "three"):
        settle(trials, regex(text))
    trials.close()
    assert trials.is_accepted(regex("one"))
    assert trials.is_accepted(regex("three"))
    assert not trials.is_accepted(regex("two"))


def test_a_guide_that_nobody_needs_any_more_is_not_tried(start: Start) -> None:
    """Clients that left do not delay the guide of one that waits."""
    trials = start()
    left = [regex(f"left {number}") for number in range(10)]
    for guide in left:
        assert not trials.is_accepted(guide)
    assert not trials.is_accepted(regex("needed"))
    for guide in left:
        trials.withdraw(guide)
    trials.withdraw(regex("never asked for"))
    settle(trials, regex("needed"))
    assert not trials.is_accepted(left[-1])  # it has no result


def test_a_guide_whose_test_runs_is_finished(start: Start) -> None:
    """Its result is that of its own test, not that of the next guide."""
    trials = start()
    settle(trials, regex("good"))
    trials.is_accepted(regex("bad"))
    trials.withdraw(regex("bad"))
    settle(trials, regex("next"))
    with pytest.raises(RequestError, match="is refused"):
        trials.is_accepted(regex("bad"))


def test_the_guides_that_wait_are_bounded(start: Start) -> None:
    """One more is refused at once, and may come again later."""
    trials = start()
    for number in range(guide_queue.MAX_WAITING):
        trials.is_accepted(regex(f"guide {number}"))
    with suppress(QueueFullError):
        trials.is_accepted(regex("instead of the one that is being tested"))
    with pytest.raises(QueueFullError, match="again later"):
        trials.is_accepted(regex("one more"))
    settle(trials, regex(f"guide {guide_queue.MAX_WAITING - 1}"))
    settle(trials, regex("one more"))


def test_a_guide_that_was_slow_in_the_engine_is_refused(start: Start) -> None:
    """Although it compiles."""
    trials = start()
    settle(trials, regex("good"))
    trials.reject(regex("good"), RequestError("guided_decoding_guide: too slow"))
    with pytest.raises(RequestError, match="too slow"):
        trials.is_accepted(regex("good"))


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts of guides in the order of their tests."""
    texts: list[str] = []
    take = guide_queue.GuideQueue.take

    def recording_take(queue: guide_queue.GuideQueue) -> tuple[GuideSpec, str]:
        guide, tenant = take(queue)
        texts.append(guide.text)
        return guide, tenant

    monkeypatch.setattr(guide_queue.GuideQueue, "take", recording_take)
    return texts


def settle_all(trials: GuideTrials, guides: dict[GuideSpec, str]) -> None:
    """Wait until every guide is accepted for its tenant."""
    until = time.monotonic() + PATIENCE
    while {trials.is_accepted(guide, tenant) for guide, tenant in guides.items()} != {True}:
        assert time.monotonic() < until
        trials.wait(0.05)


def test_a_tenant_waits_behind_itself(start: Start, tested: list[str]) -> None:
    """Fifteen guides of one tenant wait; another's is tested second, not sixteenth."""
    trials = start(clock=time.monotonic)
    guides = {regex(f"many {number:02}"): "many" for number in range(15)}
    for guide, tenant in guides.items():
        assert not trials.is_accepted(guide, tenant)
    settle_all(trials, guides | {regex("other"): "other"})
    assert tested.index("other") <= 2
    many = [text for text in tested if text != "other"]
    assert many == sorted(many)


def test_a_guide_of_two_tenants_is_tested_once(start: Start, tested: list[str]) -> None:
    """At the turn of the tenant whose turn is first; the other has its result as well."""
    trials = start(clock=time.monotonic)
    guides = {regex(f"many {number}"): "many" for number in range(5)}
    for guide, tenant in guides.items():
        trials.is_accepted(guide, tenant)
    assert not trials.is_accepted(regex("many 4"), "other")
    settle_all(trials, guides)
    assert tested.index("many 4") <= 2
    assert len(tested) == len(set(tested)) == 5


def test_a_process_that_is_replaced_during_a_test_goes_on(start: Start) -> None:
    """The engine drops its guides while one is tested: whoever waits for it asks again."""
    trials = start()
    settle(trials, regex("one"))
    assert not trials.is_accepted(regex("two"))
    trials.reset()
    settle(trials, regex("two"))
