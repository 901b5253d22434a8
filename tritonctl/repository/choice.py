# SPDX-License-Identifier: Apache-2.0
"""A choice of models (`--models`): with what their ensembles are made of."""

from __future__ import annotations

from collections.abc import Collection

from tritonctl.errors import UsageError, choices
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import steps_of
from tritonctl.repository.contents import HandwrittenModel, handwritten
from tritonctl.repository.interfaces import models_within


def chosen(project: Project, names: Collection[str]) -> Project:
    """The project with these of its models alone, and what their ensembles are made of.

    Raises UsageError for an unknown name, ConfigurationError for a config that cannot be read.
    """
    others = others_besides(project, names)
    known = {*project.public, *others}
    waiting, wanted = [*names], set(names)
    while waiting:
        name = waiting.pop()
        made_of = steps_of(others[name].config) if name in others else models_within(project, name)
        new = {*made_of} & known - wanted
        wanted |= new
        waiting += new
    return project.only(wanted)


def others_besides(project: Project, names: Collection[str]) -> dict[str, HandwrittenModel]:
    """The models that were written by hand. Raises UsageError for a name that no model has."""
    others = {model.name: model for model in handwritten(project, project.public)}
    known = [*project.public, *others]
    for name in names:
        if name not in known:
            raise UsageError(
                f"neither the project nor its repository has a model `{name}`",
                remedy=choices(name, known, "its models:"),
            )
    return others
