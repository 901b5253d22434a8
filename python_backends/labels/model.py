# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: a classifier's scores to its labels, best first."""

from tasklib.last_step_model import LastStepModel
from tasklib.last_steps import Labels


class TritonPythonModel(LastStepModel):
    """The tensors are those of tasklib.last_steps.Labels."""

    step = Labels
