# SPDX-License-Identifier: Apache-2.0
"""The table of mistakes made on purpose, out of the manifests of engines that were built.

    python benchmarks/tasks/controls.py FOLDER [FOLDER ...] [--write]

FOLDER: of engines (`.tritonctl/engines`, or `engines:` of a project), or of results of
tests/task_builds.py such as architectures.py keeps. --write: the page
benchmarks/results/negative-controls.md, else it is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from proofs import Proven, proofs

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parents[1] / "builders" / "shared")]

from taskproof.figures import HIGHER, figure  # noqa: E402

RESULTS = HERE.parent / "results" / "negative-controls.md"
INTRODUCTION = """\
# Mistakes made on purpose

Made by `python benchmarks/tasks/controls.py FOLDER --write` out of the manifests of {builds} builds
of {architectures} architectures. Every build of a task makes the mistakes that its checkpoint makes
possible, and fails unless each of them breaks a bound of fp32
([how](../../builders/README.md#tasks)): a proof that could not see a mistake proves nothing.
*Narrowest*: the value, of all builds, that came nearest to its bound, and whose it was; it still
broke it.

"""


def page(builds: Iterable[Proven]) -> str:
    """The introduction, and a table for each task. Raises SystemExit for a control that kept."""
    builds = list(builds)
    rows: dict[tuple[str, str], list[tuple[Proven, dict[str, Any]]]] = defaultdict(list)
    for build in builds:
        for control in build.controls:
            rows[build.task, control["name"]].append((build, control))
    architectures = {build.architecture for build in builds}
    introduction = INTRODUCTION.format(builds=len(builds), architectures=len(architectures))
    return introduction + "\n".join(_tables(rows)) + "\n"


def _tables(rows: dict[tuple[str, str], list[tuple[Proven, dict[str, Any]]]]) -> Iterator[str]:
    tasks = sorted({task for task, _ in rows})
    for at, task in enumerate(tasks):
        yield f"{chr(10) if at else ''}## `{task}`\n"
        yield "| mistake | builds | seen by | bound | narrowest | of |"
        yield "|---|---|---|---|---|---|"
        for (of, mistake), seen in sorted(rows.items()):
            if of == task:
                yield _row(mistake, seen)


def _row(mistake: str, seen: list[tuple[Proven, dict[str, Any]]]) -> str:
    build, control = min(seen, key=lambda one: _distance(one[1]))
    bound = figure(control["figure"], control["value"], "fp32")
    if bound.kept:
        raise SystemExit(f"{build.folder}: {mistake} broke no bound of fp32")
    measures = ", ".join(sorted({f"`{one['figure']}`" for _, one in seen}))
    least = "≥" if bound.better == HIGHER else "≤"
    return (
        f"| {mistake} | {len(seen)} | {measures} | {least} {bound.bound:g} | "
        f"{control['value']:.4g} | {build.architecture}, {build.precision} |"
    )


def _distance(control: dict[str, Any]) -> float:
    """How far from its bound, as a share of it or of what is left to 1."""
    bound = figure(control["figure"], control["value"], "fp32")
    if bound.better == HIGHER:
        return (bound.bound - bound.value) / bound.bound
    return bound.value / bound.bound - 1


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    text = page(proofs(asked.folders))
    if asked.write:
        RESULTS.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
