# SPDX-License-Identifier: Apache-2.0
"""The controller's process: `python -m tritonctl.rollout.control SPEC.json [take-back]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tritonctl.errors import HostError
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.rollout.controller import Controller
from tritonctl.rollout.journal import open_journal
from tritonctl.rollout.platforms import platform_of
from tritonctl.rollout.status import rollout_status, rollouts_folder
from tritonctl.rollout.supervise import DONE, SUPERFLUOUS
from tritonctl.rollout.traffic import roll_back_without_project

TAKE_BACK = "take-back"


def main(arguments: Sequence[str]) -> int:
    """Run the rollout's controller; with `take-back`, only return its users to stable."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if arguments[1:] == [TAKE_BACK]:
        _take_back(spec)
        return DONE
    project = _project(spec)
    status = rollout_status(project, spec["number"])
    folder = rollouts_folder(project)
    if status.controller is not None:
        return SUPERFLUOUS
    about = status.state.details
    with open_journal(folder, status.number) as (journal, entries):
        environment = platform_of(project, about).environment(about, status.folder)
        Controller(journal, entries, status.folder, environment).run()
    return DONE


def _take_back(spec: Mapping[str, Any]) -> None:
    """Return users to stable even if the project file is no longer readable."""
    try:
        project = _project(spec)
        platform_of(project, rollout_status(project, spec["number"]).state.details).take_back()
    except Exception:  # the prepared routes need no project
        roll_back_without_project(Path(spec["routes"]))


def _project(spec: Mapping[str, Any]) -> Project:
    return load_project(Path(spec["project"]), profile=spec["profile"], overrides=spec["overrides"])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HostError as error:
        sys.exit(f"tritonctl: {error.problem}; {error.remedy}")
