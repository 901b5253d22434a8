# SPDX-License-Identifier: Apache-2.0
"""Selects models (`--models`) together with the steps of their ensembles."""

from __future__ import annotations

from collections.abc import Collection

from tritonctl.errors import UsageError, choices
from tritonctl.project.schema import Project
from tritonctl.protocol.model_config import steps_of
from tritonctl.repository.contents import (
    CONFIG,
    HandwrittenModel,
    folders_without_config,
    handwritten,
)
from tritonctl.repository.interfaces import models_within


def select_models(project: Project, names: Collection[str]) -> Project:
    """Return the project restricted to these models and the steps of their ensembles.

    Raises UsageError for an unknown name, ConfigurationError for an unreadable config.
    """
    handwritten_models = handwritten_by_name(project, names)
    model_names = {*project.public, *handwritten_models}
    waiting, selected = [*names], set(names)
    while waiting:
        name = waiting.pop()
        step_names = (
            steps_of(handwritten_models[name].config)
            if name in handwritten_models
            else models_within(project, name)
        )
        new = {*step_names} & model_names - selected
        selected |= new
        waiting += new
    return project.only(selected)


def handwritten_by_name(project: Project, names: Collection[str]) -> dict[str, HandwrittenModel]:
    """Return the hand-written models by name. Raises UsageError for an unknown name."""
    by_name = {model.name: model for model in handwritten(project, project.public)}
    model_names = [*project.public, *by_name]
    incomplete = folders_without_config(project)
    for name in names:
        if name not in model_names and name in incomplete:
            raise UsageError(
                f"{project.model_repository / name} has no {CONFIG}, so it is not a model",
                remedy=f"write its {CONFIG}, with its backend and its tensors: the server does not "
                "complete it",
            )
        if name not in model_names:
            raise UsageError(
                f"neither the project nor its repository has a model `{name}`",
                remedy=choices(name, model_names, "its models:"),
            )
    return by_name
