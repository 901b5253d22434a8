# SPDX-License-Identifier: Apache-2.0
"""The proof of rollouts: real servers, a real Envoy, users at 20 requests a second, one machine.

    python benchmarks/rollout/run.py [going_on|faults|disturbed|same|recorded|kills ...]
        [--only FAULT ...]
        [--folder FOLDER] [--rollouts 20] [--simulated 200] [--seconds 600] [--minutes 20]

going_on: streams of a release that is taken back, by each kind of client.
faults: each fault of planting.py in a candidate: found or not, by what, how fast, who met it.
disturbed: an equal release whose server runs a quarter of the time, for less than is excused and
for twice as long.
same: so many rollouts of an equal release; recorded: so many simulated ones over the streams that
one release answered in so many seconds. kills: controller, Envoy and each server, in every state.
Without a word: all of them. Tables go to standard output as they are ready, row by row; with
--minutes nothing is begun after so many. In a folder that an earlier run has left nothing is built
again, and no kill is done again that has its row.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS.parent)]

import going_on  # noqa: E402
import killing  # noqa: E402
import recorded  # noqa: E402
from bench import say  # noqa: E402
from load import RATE, Asked, Load, users_of  # noqa: E402
from planting import FAULTS, Fault  # noqa: E402
from rig import ENDED, Done, Rig, at_of  # noqa: E402
from tritonctl.loadtest.analysis.binomial import share_bounds  # noqa: E402
from tritonctl.project.rollout import Rollout  # noqa: E402
from tritonctl.releases.store import StoredRelease  # noqa: E402
from tritonctl.rollout.journal import JournalEvent, RolloutPhase  # noqa: E402

# The default steps, held for less: a fault that is found is found by its requests, not by waiting.
STEPS = {
    "steps": [5, 25, 50, 100],
    "hold_seconds": 30.0,
    "minimum_requests": 30,
    "warm_up_seconds": 10.0,
    "keep_warm_seconds": 1.0,
    "shadow": 0.1,
    "tolerated": {},
}
QUICK = {"steps": [25, 50, 100], "hold_seconds": 12.0, "minimum_requests": 20, "shadow": 0.0}
_DISTURBED = QUICK | {"steps": [25, 100], "warm_up_seconds": 5.0}
_DISTURBED_AFTER = 8.0  # after the first step
_DISTURBED_SECONDS = (14.0, 30.0)  # `tolerated.slow_seconds` are 15
_BEFORE_SECONDS, _AFTER_SECONDS = 10.0, 8.0
_LONGEST_SECONDS = 300.0
_WORDS = ("going_on", "faults", "disturbed", "same", "recorded", "kills")


@dataclass(frozen=True)
class Played:
    """One rollout under load."""

    done: Done
    phase: RolloutPhase | None
    reason: str
    step: float | None  # per cent that the candidate had
    started: float
    ended: float | None
    asked: Sequence[Asked]
    version: str

    @property
    def exposed(self) -> list[Asked]:
        """Requests that the candidate had a part in, and those that failed while it had users."""
        return [each for each in self.asked if each.version == self.version or each.failed]

    @property
    def first_bad(self) -> float | None:
        """When the first of them was sent that failed, or broke; the first at all without any."""
        broken = [each.sent for each in self.exposed if each.failed or each.resumes]
        return min(broken, default=min((each.sent for each in self.exposed), default=None))

    @property
    def last_moved(self) -> float | None:
        """When the last request was sent that only the candidate answered."""
        whole = [each.sent for each in self.exposed if each.version == self.version]
        return max(whole, default=None)


def played(rig: Rig, candidate: StoredRelease, folder: Path) -> Played:
    """From some seconds before its start to some after its end."""
    load = Load(rig.url, folder)
    time.sleep(_BEFORE_SECONDS)
    started = time.time()
    done = rig.start(candidate)
    if not done.code:
        rig.wait(lambda state: state.is_over and state.moved, _LONGEST_SECONDS)
    entries, state = rig.entries() if not done.code else [], None
    state = rig.state() if entries else None
    time.sleep(_AFTER_SECONDS)
    asked = load.stop()
    shares = [float(e.details["share"]) for e in entries if e.event is JournalEvent.STEP]
    return Played(
        done,
        state.phase if state else None,
        str(state.outcome.get("reason", "")) if state else done.words,
        shares[-1] if shares else None,
        started,
        at_of(entries, *ENDED),
        asked,
        str(candidate.number),
    )


def faults(
    rig: Rig, folder: Path, only: Sequence[str], is_over: Callable[[], bool]
) -> Iterator[str]:
    """A row each."""
    yield (
        "| fault | found | by | step, % | s from the first bad request: to the decision "
        "| to the last request there | requests there | users | failed | went on at stable "
        "| tokens lost | goal |"
    )
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|---|"
    for fault in FAULTS:
        if is_over() or (only and fault.name not in only):
            continue
        try:
            candidate = rig.planted(fault)
            yield _row(fault, played(rig, candidate, folder / fault.name))
        except Exception as error:  # the others are worth having
            yield f"| {fault.words} | not measured: {type(error).__name__}: {error} |"
        rig.settle()
        if rig.state() is not None and rig.state().phase is RolloutPhase.PROMOTED:  # type: ignore[union-attr]
            rig.down()
            rig.up()


def _row(fault: Fault, one: Played) -> str:
    found = one.phase is not RolloutPhase.PROMOTED
    cells = [
        fault.words,
        "yes" if found else "**no**",
        " ".join(one.reason.split()).replace("|", "/")[-160:],
    ]
    cells.append("–" if one.step is None else f"{one.step:g}")
    first = one.first_bad
    cells += [
        "–" if first is None or moment is None else f"{moment - first:.1f}"
        for moment in (one.ended if found else None, one.last_moved)
    ]
    failed = sum(each.failed for each in one.asked)
    went_on = sum(each.resumes > 0 and not each.failed for each in one.asked)
    numbers = (len(one.exposed), users_of(one.exposed), failed, went_on)
    cells += [str(number) for number in numbers]
    cells += [str(sum(each.lost for each in one.asked)), fault.goal or "–"]
    return "| " + " | ".join(cells) + " |"


def disturbed(rig: Rig, folder: Path) -> Iterator[str]:
    """Releases that are no worse, and have a slow phase of their own in their first step."""
    rig.settings(_DISTURBED)
    yield (
        "| slow for, s | ended | TTFT, ms: else, meanwhile | held, s after its begin "
        "| rolled back or promoted after, s | failed | why |"
    )
    yield "|--:|---|--:|--:|--:|--:|---|"
    for seconds in _DISTURBED_SECONDS:
        yield _disturbed(rig, folder / f"disturbed-{seconds:g}", seconds)


def _disturbed(rig: Rig, folder: Path, seconds: float) -> str:
    candidate = rig.equal
    load = Load(rig.url, folder)
    time.sleep(_BEFORE_SECONDS)
    if (done := rig.start(candidate)).code:
        raise RuntimeError(done.words[-2000:])
    rig.wait(lambda state: state.step is not None, _LONGEST_SECONDS)
    time.sleep(_DISTURBED_AFTER)
    began = time.time()
    killing.disturb(rig, seconds)
    over = time.time()
    rig.wait(lambda state: state.is_over and state.moved, _LONGEST_SECONDS)
    entries, state = rig.entries(), rig.state()
    rig.settle()
    asked = load.stop()
    mine = [each for each in asked if each.version == str(candidate.number) and each.first]
    firsts = [
        sorted(each.first - each.sent for each in mine if (began < each.sent < over) is slow)  # type: ignore[operator]
        for slow in (False, True)
    ]
    medians = [f"{1000 * times[len(times) // 2]:.0f}" if times else "–" for times in firsts]
    held = [entry.at for entry in entries if entry.details.get("standing") == "hold"]
    ended = at_of(entries, *ENDED)
    return (
        f"| {seconds:g} | {state.phase if state else None} | {', '.join(medians)} "
        f"| {f'{held[0] - began:.0f} to {held[-1] - began:.0f}' if held else '–'} "
        f"| {f'{ended - began:.0f}' if ended else '–'} | {sum(each.failed for each in asked)} "
        f"| {state.outcome.get('reason', '') if state else ''} |"
    )


def same(rig: Rig, folder: Path, n: int, is_over: Callable[[], bool]) -> Iterator[str]:
    """Rollouts of an equal release, to and fro."""
    rig.settings(QUICK)
    load = Load(rig.url, folder / "same")
    wrong: list[str] = []
    ran = 0
    for _ in range(n):
        if ran and is_over():
            break
        if (done := rig.start(rig.equal)).code:
            raise RuntimeError(done.words[-2000:])
        if not rig.wait(lambda state: state.is_over and state.moved, _LONGEST_SECONDS):
            say(f"not at its end after {_LONGEST_SECONDS:g} s: {rig.state()}")
        state = rig.state()
        rig.settle()
        ran += 1
        if state is None or state.phase is not RolloutPhase.PROMOTED:
            wrong.append(str(state.outcome.get("reason")) if state else "no journal")
            say(f"rolled back: {wrong[-1]}")
    asked = load.stop()
    low, high = share_bounds(len(wrong), ran)
    yield "| real rollouts | rolled back | 95 % interval | requests | failed | tokens lost | why |"
    yield "|--:|--:|--:|--:|--:|--:|---|"
    failed, lost = sum(each.failed for each in asked), sum(each.lost for each in asked)
    yield (
        f"| {ran} | {len(wrong)} = {len(wrong) / ran:.1%} | {low:.1%} to {high:.1%} "
        f"| {len(asked):,} | {failed} | {lost} | {'; '.join(sorted(set(wrong))) or '–'} |"
    )


def over_recorded(rig: Rig, folder: Path, n: int, seconds: float) -> Iterator[str]:
    """What one release answered, and the simulated rollouts over it, by the default settings."""
    load = Load(rig.url, folder / "recorded")
    time.sleep(seconds)
    yield from recorded.table(load.stop(), n, Rollout())


def main() -> None:
    """As the docstring says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="*", help=f"of {', '.join(_WORDS)}")
    parser.add_argument("--only", nargs="*", default=[], help="faults by name")
    parser.add_argument("--folder", type=Path, help="keeps everything there")
    parser.add_argument("--rollouts", type=int, default=20)
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--shadow", type=float, default=0.1, help="share of requests; 0: none")
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes

    def is_over() -> bool:
        return time.monotonic() > end

    wanted = given.what or list(_WORDS)
    if unknown := {*wanted} - {*_WORDS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch)
        steps = {**STEPS, "shadow": given.shadow}
        rig = Rig(folder / "project", steps, frontend={"port": 0})
        print(f"{RATE} requests a second; releases {rig.stable.name}, {rig.twin.name}", flush=True)
        rig.up()
        try:
            tables = {
                "going_on": lambda: going_on.table(rig, folder),
                "faults": lambda: faults(rig, folder, given.only, is_over),
                "disturbed": lambda: disturbed(rig, folder),
                "recorded": lambda: over_recorded(rig, folder, given.simulated, given.seconds),
                "kills": lambda: killing.table(rig, folder, is_over),
                "same": lambda: same(rig, folder, given.rollouts, is_over),
            }
            for word in wanted:
                rig.settings(steps)
                print(f"\n## {word}\n", flush=True)
                for line in tables[word]():
                    print(line, flush=True)
        finally:
            rig.down()


if __name__ == "__main__":
    main()
