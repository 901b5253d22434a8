# SPDX-License-Identifier: Apache-2.0
"""Builds the engines of several models in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tritonctl.engines.builds.engine import Artefact, announce, run_plan
from tritonctl.engines.builds.plan import BuildPlan
from tritonctl.host.process import terminate_running
from tritonctl.host.progress import Board, Progress


def build_engines(
    plans: Sequence[BuildPlan],
    progress: Progress,
    board: Board,
    *,
    force: bool = False,
    jobs: int = 1,
    run_one: Callable[..., Artefact] = run_plan,
) -> Iterator[tuple[str, Artefact]]:
    """Yield names and engines in order of completion; up to `jobs` builds run in parallel.

    After a failure no new build starts and running builds finish. Raises the first failure.
    """

    for plan in plans:
        announce(plan.requested, board, force=force)
    waiting = list(plans)
    running: dict[Future[Artefact], str] = {}
    failures: list[BaseException] = []
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="build") as pool:
        try:
            while running or (waiting and not failures):
                while waiting and not failures and len(running) < jobs:
                    plan = waiting.pop(0)
                    task = pool.submit(run_one, plan, progress, force=force, board=board)
                    running[task] = plan.name
                for task in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(task)
                    if error := task.exception():
                        failures.append(error)
                    else:
                        yield name, task.result()
        except BaseException:
            terminate_running()
            raise
    if failures:
        raise failures[0]
