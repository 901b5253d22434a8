# SPDX-License-Identifier: Apache-2.0
"""How accurate load tests are, and how much load one worker can make.

Usage: python benchmarks/loadtest/run.py [calibration] [rival] [throughput] [--seconds 20]
README.md describes the comparisons. Exit code 1 when a calibration is off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[1]
sys.path += [str(BENCHMARKS), str(BENCHMARKS / "streaming")]

from bench import Bench, awake  # noqa: E402
from calibration import calibrate  # noqa: E402
from rival import against_perf_analyzer  # noqa: E402
from throughput import keep_up, saturate  # noqa: E402

PARTS = ("calibration", "rival", "throughput")


def main() -> int:
    """Run the parts and print their tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} [default: all]")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one calibration run")
    parser.add_argument("--rate", type=float, default=60.0, help="of a calibration run")
    parser.add_argument("--requests", type=int, default=600, help="of one closed loop")
    parser.add_argument("--repetitions", type=int, default=4, help="of the closed loops")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(PARTS)}")
    parts, good = arguments.parts or PARTS, True
    with tempfile.TemporaryDirectory() as name, awake() as granted:
        print(f"idle cores {'do not' if granted else 'may'} sleep")
        bench = Bench(Path(name))
        if "calibration" in parts:
            good = calibrate(bench, arguments.rate, arguments.seconds)
        if "rival" in parts:
            against_perf_analyzer(bench, arguments.requests, arguments.repetitions)
        if "throughput" in parts:
            saturate(bench, arguments.seconds / 2)
            keep_up(bench, arguments.seconds / 2)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
