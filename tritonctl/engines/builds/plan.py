# SPDX-License-Identifier: Apache-2.0
"""The build plans of a command: each model is resolved, checked and hashed once.

Every request is checked by its builder's program before the first file is hashed, so that a mistake
in the last model costs nothing. The plan is passed down; nothing below plans again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.engines.builds.fingerprint import FileHashes
from tritonctl.engines.builds.preflight import check_requests
from tritonctl.engines.builds.stages import (
    StageBuild,
    hash_stages,
    resolve_build,
    stages_until,
)
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project


@dataclass(frozen=True)
class BuildPlan:
    """The stages of one model's engine, and where to stop."""

    name: str
    stages: list[StageBuild]  # all of them; the last artefact is the engine
    until: str | None = None  # stop after this stage

    @property
    def requested(self) -> list[StageBuild]:
        """The stages to run."""
        return stages_until(self.stages, self.until)

    @property
    def target(self) -> StageBuild:
        """The stage whose artefact the build returns."""
        return self.requested[-1]


def plan_builds(
    project: Project, names: Sequence[str], progress: Progress, *, until: str | None = None
) -> dict[str, BuildPlan]:
    """Plan the builds of several models, by name.

    `until` names the stage to stop after. Raises UsageError for an unknown stage,
    ConfigurationError for unsupported settings, BuildFailedError with the message of a builder that
    refuses a request, HostError when a file of a checkpoint cannot be read.
    """
    resolved_builds = {name: resolve_build(project, name) for name in names}
    for name, resolved in resolved_builds.items():
        check_requests(project, name, resolved)
    hashes = FileHashes.of_project(project, progress)
    plans = {
        name: BuildPlan(name, hash_stages(project, name, resolved, hashes), until)
        for name, resolved in resolved_builds.items()
    }
    for plan in plans.values():
        stages_until(plan.stages, until)
    return plans
