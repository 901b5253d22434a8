# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: a classifier's scores to its labels, best first."""

from tasklib.last_step_model import LastStepModel
from tasklib.last_steps import LabelsStep


class TritonPythonModel(LastStepModel):
    """See tasklib.last_steps.LabelsStep for the tensors."""

    step = LabelsStep
