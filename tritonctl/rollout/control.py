# SPDX-License-Identifier: Apache-2.0
"""The controller's process: `python -m tritonctl.rollout.control SPEC.json [take-back]`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tritonctl.errors import HostError
from tritonctl.project.file import load_project
from tritonctl.rollout.controller import Controller
from tritonctl.rollout.journal import controlling
from tritonctl.rollout.places import place_of
from tritonctl.rollout.standing import rollout, rollouts_folder
from tritonctl.rollout.supervise import DONE, SUPERFLUOUS

TAKE_BACK = "take-back"


def main(arguments: Sequence[str]) -> int:
    """Run the rollout's controller; or, once that was given up, only take its users back."""
    spec = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    project = load_project(
        Path(spec["project"]), profile=spec["profile"], overrides=spec["overrides"]
    )
    found = rollout(project, spec["number"])
    if arguments[1:] == [TAKE_BACK]:
        place_of(project, found.state.about).take_back()
        return DONE
    folder = rollouts_folder(project)
    if found.controller is not None:
        return SUPERFLUOUS
    about = found.state.about
    with controlling(folder, found.number) as (journal, entries):
        made = place_of(project, about).world(about, found.folder)
        Controller(journal, entries, found.folder, made).run()
    return DONE


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HostError as error:
        sys.exit(f"tritonctl: {error.problem}; {error.remedy}")
