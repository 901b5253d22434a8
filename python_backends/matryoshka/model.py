# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: embeddings cut to the number of dimensions that a request sets."""

from tasklib.last_step_model import LastStepModel
from tasklib.last_steps import MatryoshkaStep


class TritonPythonModel(LastStepModel):
    """See tasklib.last_steps.MatryoshkaStep for the tensors."""

    step = MatryoshkaStep
