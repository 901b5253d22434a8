# SPDX-License-Identifier: Apache-2.0
"""Load tests in Locust: the plans of `tritonctl loadtest`, with its web UI and distribution.

    locust -f loadtests/locustfile.py --plan PLAN.json [--headless] [--output FOLDER]
    locust -f loadtests/locustfile.py --host 127.0.0.1:8001 --model speller --prompts FILE --rate 5
    locust -f loadtests/locustfile.py --master --expect-workers 2 ...   and, twice,
    locust -f loadtests/locustfile.py --worker

Each process with users starts generator.py, which sends and measures. The number of users does not
affect open-loop arrivals; a closed loop simulates as many users as Locust has. Response times run
from the planned time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from locust import User, constant, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

# Locust removes this folder from the path after loading the file.
sys.path.append(str(Path(__file__).resolve().parent))

from loadlib.locust_master import LocustMaster
from loadlib.locust_options import add_arguments, default_users
from loadlib.locust_stats import use_hdr_buckets
from loadlib.locust_worker import LocustWorker

events.init_command_line_parser.add_listener(add_arguments)


class TritonUser(User):  # type: ignore[misc]
    """One user of a closed loop, simulated by the generator; idle in an open loop."""

    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def run_to_the_end(self) -> None:
        """Wait until the run ends."""
        self.environment.tritonctl_worker.run_user()
        raise StopUser


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Any, runner: Any, **_: Any) -> None:
    """Attach the master part, the worker part, or both to this process."""
    use_hdr_buckets()
    if not isinstance(runner, WorkerRunner):
        default_users(environment.parsed_options)
        LocustMaster(environment)  # before the worker, which reads the master's plan
    if not isinstance(runner, MasterRunner):
        environment.tritonctl_worker = LocustWorker(environment)
