# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: scores of tokens to the entities of a text."""

from tasklib.last_step_model import LastStepModel
from tasklib.last_steps import EntitiesStep


class TritonPythonModel(LastStepModel):
    """See tasklib.last_steps.EntitiesStep for the tensors."""

    step = EntitiesStep
