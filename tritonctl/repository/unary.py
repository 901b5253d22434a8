# SPDX-License-Identifier: Apache-2.0
"""A public model that answers once, in front of an ensemble that streams.

Triton makes an ensemble decoupled if one of its steps is, and refuses ModelInfer and HTTP `infer`
for it. A second ensemble over the same engine would be decoupled, too; a Python model is not.
"""

from __future__ import annotations

from collections.abc import Mapping

from tritonctl.errors import ConfigurationError
from tritonctl.project.schema import Project
from tritonctl.repository.backends import PythonBackend, backend_named
from tritonctl.repository.ensembles import Ensemble, StepInterface, most_items

UNARY = "unary"


def unary_backend(
    name: str, ensemble: Ensemble, steps: Mapping[str, StepInterface], project: Project
) -> PythonBackend:
    """The backend of `<name>_unary`: with the tensors of its ensemble.

    Raises ConfigurationError for an ensemble that answers once itself.
    """
    if not any(step.decoupled for step in steps.values()):
        raise pointless(name)
    tensors = {"inputs": list(ensemble.inputs), "outputs": list(ensemble.outputs)}
    limit = {"max_batch_size": most_items(ensemble, project.models[name].engine.max_batch_size)}
    return backend_named(UNARY, project.root).model_copy(update=tensors | limit)


def pointless(name: str) -> ConfigurationError:
    """`serving.unary` of a model that is no streaming ensemble."""
    return ConfigurationError(
        f"models.{name}.serving.unary: {name} is no ensemble that streams",
        remedy="remove `unary: true`",
    )
