# SPDX-License-Identifier: Apache-2.0
"""Load tests in Locust: the plans of `tritonctl loadtest`, with its web UI and distribution.

    locust -f loadtests/locustfile.py --plan PLAN.json [--headless] [--output FOLDER]
    locust -f loadtests/locustfile.py --host 127.0.0.1:8001 --model speller --prompts FILE --rate 5
    locust -f loadtests/locustfile.py --master --expect-workers 2 ...   and, twice,
    locust -f loadtests/locustfile.py --worker

Open-loop arrivals are sent when they are due, however many users there are; in a closed loop the
users send. Response times run from the planned moment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import grpc.experimental.gevent
from locust import User, constant, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

# Before the first channel, and after Locust has patched the standard library.
grpc.experimental.gevent.init_gevent()
# Locust takes this folder off the path once the file is loaded.
sys.path.append(str(Path(__file__).resolve().parent))

from loadlib.locust_master import Master  # noqa: E402
from loadlib.locust_options import add_arguments, default_users  # noqa: E402
from loadlib.locust_stats import use_hdr_buckets  # noqa: E402
from loadlib.locust_worker import Local, Remote  # noqa: E402

events.init_command_line_parser.add_listener(add_arguments)


class TritonUser(User):  # type: ignore[misc]
    """In a closed loop: sends, waits for the answer, thinks. In an open loop: waits for the end."""

    wait_time = constant(0)

    @task  # type: ignore[untyped-decorator]
    def session(self) -> None:
        """One request or conversation."""
        if not self.environment.tritonctl.session():
            raise StopUser


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Any, runner: Any, **_: Any) -> None:
    """Attach the runs to this process, whichever part it plays."""
    use_hdr_buckets()
    if isinstance(runner, WorkerRunner):
        environment.tritonctl = Remote(environment)
        return
    default_users(environment.parsed_options)
    part = Master if isinstance(runner, MasterRunner) else Local
    environment.tritonctl = part(environment)
