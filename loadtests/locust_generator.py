# SPDX-License-Identifier: Apache-2.0
"""Run Locust with the command line of generator.py, so that `tritonctl loadtest` can use either.

python locust_generator.py --plan PLAN.json --output FOLDER [--worker 0 --workers 1]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

LOCUSTFILE = Path(__file__).resolve().with_name("locustfile.py")


def main() -> None:
    """Replace this process with Locust."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plan", required=True, help="the load plan, JSON")
    parser.add_argument("--output", required=True, help="folder for the records")
    parser.add_argument("--worker", type=int, default=0, help="which of the workers this is")
    parser.add_argument("--workers", type=int, default=1, help="how many share the plan")
    options = parser.parse_args()
    arguments = ["-f", str(LOCUSTFILE), "--headless", "--only-summary", "--plan", options.plan]
    arguments += ["--output", options.output, "--share", f"{options.worker}/{options.workers}"]
    os.execv(sys.executable, [sys.executable, "-m", "locust", *arguments])  # noqa: S606


if __name__ == "__main__":
    main()
