# SPDX-License-Identifier: Apache-2.0
"""Builds the engines of several models, some of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tritonctl.engines.build.engine import Artefact, announce, build_engine
from tritonctl.engines.build.preflight import check_request
from tritonctl.engines.build.stages import plan_stages, stages_until
from tritonctl.host.process import end_running
from tritonctl.host.progress import Board, Progress
from tritonctl.project.schema import Project


def build_engines(
    project: Project,
    names: Sequence[str],
    progress: Progress,
    board: Board,
    *,
    force: bool = False,
    until: str | None = None,
    jobs: int = 1,
    build_one: Callable[..., Artefact] = build_engine,
) -> Iterator[tuple[str, Artefact]]:
    """Names and engines in the order in which they get ready; `jobs` builds run at once.

    `until`: the stage to stop after. All models are planned and checked before the first is built:
    a mistake in the last one costs nothing. After a failure no further build is started, and those
    that run are let finish. Raises the first failure.
    """

    def build(name: str) -> Artefact:
        return build_one(project, name, progress, force=force, until=until, board=board)

    for name in names:
        stages = stages_until(plan_stages(project, name), until)
        announce(stages, board, force=force)
        if force or not stages[-1].published:
            check_request(project, name)
    waiting = list(names)
    running: dict[Future[Artefact], str] = {}
    failures: list[BaseException] = []
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="build") as pool:
        try:
            while running or (waiting and not failures):
                while waiting and not failures and len(running) < jobs:
                    name = waiting.pop(0)
                    task = pool.submit(build, name)
                    running[task] = name
                for task in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(task)
                    if error := task.exception():
                        failures.append(error)
                    else:
                        yield name, task.result()
        except BaseException:
            end_running()
            raise
    if failures:
        raise failures[0]
