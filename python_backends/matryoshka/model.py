# SPDX-License-Identifier: Apache-2.0
"""Triton Python model: embeddings cut to their first dimensions where a request asks for it."""

from tasklib.last_step_model import LastStepModel
from tasklib.last_steps import Matryoshka


class TritonPythonModel(LastStepModel):
    """The tensors are those of tasklib.last_steps.Matryoshka."""

    step = Matryoshka
