# SPDX-License-Identifier: Apache-2.0
"""A choice of models (`--models`): with what their ensembles are made of."""

from __future__ import annotations

from collections.abc import Collection

from tritonctl.errors import UsageError, choices
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import steps_of
from tritonctl.repository.contents import handwritten
from tritonctl.repository.interfaces import models_within


def chosen(project: Project, names: Collection[str]) -> Project:
    """The project with these of its models alone, and what their ensembles are made of.

    Raises UsageError for an unknown name, ConfigurationError for a config that cannot be read.
    """
    others = {model.name: model for model in handwritten(project, project.public)}
    known = [*project.public, *others]
    for name in names:
        if name not in known:
            raise UsageError(
                f"neither the project nor its repository has a model `{name}`",
                remedy=choices(name, known, "its models:"),
            )
    waiting, wanted = [*names], set(names)
    while waiting:
        name = waiting.pop()
        made_of = steps_of(others[name].config) if name in others else models_within(project, name)
        new = {*made_of}.intersection(known) - wanted
        wanted |= new
        waiting += new
    return project.only(wanted)
