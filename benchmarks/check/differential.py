# SPDX-License-Identifier: Apache-2.0
"""Compares `tritonctl check` with a real tritonserver on random model repositories.

Usage: python benchmarks/check/differential.py [--count 1000] [--seed 0] [--json FILE]
       [--disagreements FILE] [--pin FOLDER]

Exit code 1 if they disagree on any. See ../README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.differential.agreement import as_record, as_text, described, table, verdicts  # noqa: E402
from tests.differential.pinned import as_pinned  # noqa: E402
from tests.differential.pool import pool_files  # noqa: E402
from tests.differential.repositories import sample  # noqa: E402
from tests.judge import Judge  # noqa: E402


def main() -> int:
    """Draw repositories, judge them, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the table and every verdict here")
    parser.add_argument("--disagreements", type=Path, help="write them here, with their files")
    parser.add_argument("--pin", type=Path, help="write each into this folder as a regression case")
    arguments = parser.parse_args()
    cases = sample(arguments.count, arguments.seed)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder), pool_files())
        try:
            judged = list(verdicts(judge, cases))
        finally:
            judge.stop()
    taken = time.monotonic() - started
    rows, wrong = table(judged), [verdict for verdict in judged if not verdict.agrees]
    print(as_text(rows))
    load = os.getloadavg()[0]
    print(f"\n{len(judged)} repositories in {taken:.0f} s, load average {load:.1f}")
    if arguments.json:
        record = {"seconds": taken, "rows": [asdict(row) for row in rows],
                  "verdicts": [as_record(verdict) for verdict in judged]}  # fmt: skip
        arguments.json.write_text(json.dumps(record, indent=1), encoding="utf-8")
    if arguments.disagreements:
        text = "\n".join(map(described, wrong))
        arguments.disagreements.write_text(text, encoding="utf-8", errors="surrogateescape")
    if arguments.pin:
        arguments.pin.mkdir(parents=True, exist_ok=True)
        for number, verdict in enumerate(judged):
            if not verdict.agrees:
                name = f"{'-'.join(verdict.case.touches)}-{arguments.seed}-{number}.txt"
                (arguments.pin / name.replace(":", "-")).write_bytes(as_pinned(verdict, number))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
