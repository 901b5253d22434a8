# SPDX-License-Identifier: Apache-2.0
"""What a tenant is given in the worst minute, and whether anything of its budget is ever lost.

Usage: python benchmarks/frontend/ledger.py [--write]

200 clients of one tenant, who all want more than there is, against real frontends: the ledger in
the process or in a real Redis, clients that go away, frontends that are killed (kill -9). Each
token is logged as it is handed over. Then the same crowd in simulated time against other rules for
"tokens per minute". About ten minutes. --write: the table goes to ../results/frontend-ledger.md.

Exit code 1 if a minute had a token too many, or a budget was not whole again afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from tests.ledger_run import MINUTE, SCENES, Outcome, play, worst_minute  # noqa: E402
from tritonctl.frontend.budgets.ledger import Claim, Ledger, MemoryLedger, Standing  # noqa: E402
from tritonctl.frontend.budgets.tenant import Tenant  # noqa: E402

RESULTS = CHECKOUT / "benchmarks" / "results" / "frontend-ledger.md"
BUDGET = 20_000
_CLIENTS, _SECONDS, _BETWEEN_TOKENS = 200, 600.0, 0.02


class Charged(MemoryLedger):
    """A rule that charges at the end what was used; nothing is reserved."""

    async def reserve(self, claim: Claim) -> Standing:
        """Admitted while anything is left."""
        claim.reserved = 0
        standing = await super().reserve(claim)
        most = claim.tenant.tokens_per_minute or 0
        if standing.over is None and standing.used >= most:
            await super().settle(claim)
            return _refused(standing)
        return standing


class Windows(MemoryLedger):
    """Reserved and refunded, in minutes of the clock: each begins with the whole budget."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._time, self._spent = clock, {0: 0}
        self._begun: dict[str, int] = {}

    async def reserve(self, claim: Claim) -> Standing:
        """Within this minute of the clock."""
        minute = int(self._time() // MINUTE)
        spent = self._spent.setdefault(minute, 0)
        if spent + claim.reserved > (claim.tenant.tokens_per_minute or 0):
            return _refused(_NOTHING)
        self._spent[minute] += claim.reserved
        self._begun[claim.grant] = minute
        return _NOTHING

    async def settle(self, claim: Claim) -> Standing:
        """The rest goes back to the minute that it came from."""
        self._spent[self._begun.pop(claim.grant)] -= claim.reserved - claim.used
        return _NOTHING


class Bucket(MemoryLedger):
    """Reserved and refunded, from a bucket of a minute's tokens that fills up all the time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._time, self._level, self._filled = clock, float(BUDGET), clock()

    async def reserve(self, claim: Claim) -> Standing:
        """From what is in it."""
        most, now = claim.tenant.tokens_per_minute or 0, self._time()
        self._level = min(most, self._level + (now - self._filled) * most / MINUTE)
        self._filled = now
        if claim.reserved > self._level:
            return _refused(_NOTHING)
        self._level -= claim.reserved
        return _NOTHING

    async def settle(self, claim: Claim) -> Standing:
        """The rest goes back."""
        self._level += claim.reserved - claim.used
        return _NOTHING


_NOTHING = Standing(0, 0, 0, 0, 0.0, 0.0)
RULES: dict[str, Callable[[Callable[[], float]], Ledger]] = {
    "reserved, held, used tokens count for a minute (tritonctl)": MemoryLedger,
    "charged at the end, as Envoy AI Gateway does": Charged,
    "reserved, in minutes of the clock": Windows,
    "reserved, token bucket": Bucket,
}


def _refused(standing: Standing) -> Standing:
    return Standing(
        standing.used,
        standing.held,
        standing.requests,
        standing.under_way,
        standing.reset_tokens,
        standing.reset_requests,
        over="tokens",
        retry_after=1.0,
    )


async def simulate(make: Callable[[Callable[[], float]], Ledger]) -> tuple[int, int]:
    """Tokens in all, and in the worst minute, in ten minutes of simulated time."""
    chance, now, events = random.Random(7), 0.0, list[tuple[float, int]]()
    ledger = make(lambda: now)
    tenant = Tenant("alice", tokens_per_minute=BUDGET)
    # When, whose turn, the claim that ends then.
    turns: list[tuple[float, int, Claim | None]] = [
        (chance.random(), client, None) for client in range(_CLIENTS)
    ]
    heapq.heapify(turns)
    while turns:
        now, client, ended = heapq.heappop(turns)
        if ended is not None:
            await ledger.settle(ended)
        if now > _SECONDS:
            continue
        prompt, most = chance.randint(1, 40), chance.randint(1, 200)
        claim = Claim(tenant, f"{client}-{now}", prompt + most)
        if (await ledger.reserve(claim)).over is not None:
            heapq.heappush(turns, (now + chance.uniform(0, 1), client, None))
            continue
        length = chance.randint(1, most)
        claim.used = prompt + length
        at = [now + _BETWEEN_TOKENS * number for number in range(1, length + 1)]
        events += [(when, 1 + (prompt if when == at[0] else 0)) for when in at]
        heapq.heappush(turns, (at[-1], client, claim))
    return sum(tokens for _, tokens in events), worst_minute(sorted(events))


_PAGE = """\
# The ledger of token budgets

Made by `python benchmarks/frontend/ledger.py --write`. What is counted, and why it holds:
[token budgets](../../docs/explanation/token-budgets.md).

{clients} clients of one tenant want more than there is: up to 300 tokens of prompt and
`max_tokens` up to 30, asked again within four seconds. Real frontends; an ensemble in their process
logs each token, 50 a second and stream. A fifth of the clients goes away in the middle. Killed:
kill -9 of a frontend, which starts again two seconds later; broken are the requests that met a dead
one, or waited for a minute on a busy machine. Whole again: after a minute, and a lease where
frontends died, the budget can be reserved to its last token, and one token more is refused.

| scene | s | complete | 429 | left | broken | tokens a minute | in the worst 60 s | whole again |
|---|--:|--:|--:|--:|--:|--:|--:|---|
{measured}

## Other rules, the same crowd

{seconds} s of simulated time, prompts up to 40 and `max_tokens` up to 200, nobody goes away,
{budget} tokens a minute.

| rule | tokens in all | in the worst 60 s | of the budget |
|---|--:|--:|--:|
{simulated}
"""


def table(outcomes: Sequence[Outcome], rules: dict[str, tuple[int, int]]) -> str:
    """The page."""
    measured = [
        f"| {one.scene.name} | {one.scene.seconds:.0f} | {one.answers['complete']:,} | "
        f"{one.answers['429']:,} | {one.answers['left']:,} | {one.answers['broken']:,} | "
        f"{one.scene.budget:,} | {one.worst:,} | {'yes' if one.again else '**no**'} |"
        for one in outcomes
    ]
    simulated = [
        f"| {name} | {given:,} | {worst:,} | {worst / BUDGET:.2f} |"
        for name, (given, worst) in rules.items()
    ]
    return _PAGE.format(
        clients=_CLIENTS,
        seconds=f"{_SECONDS:.0f}",
        budget=f"{BUDGET:,}",
        measured="\n".join(measured),
        simulated="\n".join(simulated),
    )


def main() -> int:
    """Play, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    write = parser.parse_args().write
    rules = {name: asyncio.run(simulate(make)) for name, make in RULES.items()}
    outcomes = []
    for scene in SCENES:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(play(scene, Path(folder)))
        print(outcomes[-1], file=sys.stderr)
    page = table(outcomes, rules)
    print(page)
    if write:
        RESULTS.write_text(page, encoding="utf-8")
    return 0 if all(one.worst <= one.scene.budget and one.again for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
