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
from tritonctl.rollout.journal import controlling
from tritonctl.rollout.places import place_of
from tritonctl.rollout.standing import rollout, rollouts_folder
from tritonctl.rollout.supervise import DONE, SUPERFLUOUS
from tritonctl.rollout.traffic import lead_back

TAKE_BACK = "take-back"


def main(arguments: Sequence[str]) -> int:
    """Run the rollout's controller; or, once that was given up, only take its users back."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if arguments[1:] == [TAKE_BACK]:
        _take_back(spec)
        return DONE
    project = _project(spec)
    found = rollout(project, spec["number"])
    folder = rollouts_folder(project)
    if found.controller is not None:
        return SUPERFLUOUS
    about = found.state.about
    with controlling(folder, found.number) as (journal, entries):
        made = place_of(project, about).world(about, found.folder)
        Controller(journal, entries, found.folder, made).run()
    return DONE


def _take_back(spec: Mapping[str, Any]) -> None:
    """Whatever the controller died of, such as a project file that nobody can read any more."""
    try:
        project = _project(spec)
        place_of(project, rollout(project, spec["number"]).state.about).take_back()
    except Exception:  # it needs less
        lead_back(Path(spec["routes"]))


def _project(spec: Mapping[str, Any]) -> Project:
    return load_project(Path(spec["project"]), profile=spec["profile"], overrides=spec["overrides"])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HostError as error:
        sys.exit(f"tritonctl: {error.problem}; {error.remedy}")
