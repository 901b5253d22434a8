# SPDX-License-Identifier: Apache-2.0
"""A public model with a single response, in front of an ensemble that streams.

Triton makes an ensemble decoupled if one of its steps is, and refuses ModelInfer and HTTP `infer`
for it. A second ensemble over the same engine would also be decoupled; a Python model is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.repository.backends import PythonBackend, backend_named
from tritonctl.repository.ensembles import Ensemble, StepInterface, max_batch_size_of

UNARY = "unary"


def unary_backend(
    name: str, ensemble: Ensemble, steps: Mapping[str, StepInterface], project: Project
) -> PythonBackend:
    """Return the backend of `<name>_unary`, with the tensors of its ensemble.

    Raises ConfigurationError for an ensemble that does not stream.
    """
    if not any(step.decoupled for step in steps.values()):
        raise unary_not_applicable(name)
    tensors = {"inputs": list(ensemble.inputs), "outputs": list(ensemble.outputs)}
    limit = {
        "max_batch_size": max_batch_size_of(ensemble, project.models[name].engine.max_batch_size)
    }
    return backend_named(UNARY, project.root).model_copy(update=tensors | limit)


def unary_not_applicable(name: str) -> ConfigurationError:
    """Return the error for `serving.unary` of a model that does not stream."""
    return ConfigurationError(
        f"models.{name}.serving.unary: {name} is not a streaming ensemble",
        remedy="remove `unary: true`",
    )
