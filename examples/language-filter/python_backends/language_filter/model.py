# SPDX-License-Identifier: Apache-2.0
"""Triton's Python backend runs this: questions in, prompts and languages out."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils

from languages import language, number


class TritonPythonModel:
    """question BYTES[n, 1] to prompt BYTES[n, 1] and language BYTES[n, 1]."""

    def initialize(self, args):
        """Read which languages may be asked in."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.languages = parameters["languages"]["string_value"].split(", ")

    def execute(self, requests):
        """One response to each request, in their order: a bad one fails alone."""
        return [self.answer(request) for request in requests]

    def answer(self, request):
        """The response to one request, or its error."""
        questions = pb_utils.get_input_tensor_by_name(request, "question").as_numpy()
        try:
            rows = [self.prompt(question.decode("utf-8")) for question in questions.flat]
        except ValueError as error:  # a text that is not UTF-8, too
            refused = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=refused)
        prompts, languages = zip(*rows, strict=True)
        return pb_utils.InferenceResponse(
            [
                _tensor("prompt", prompts, questions.shape),
                _tensor("language", languages, questions.shape),
            ]
        )

    def prompt(self, question):
        """The speller's prompt and its language. Raises ValueError for a question to refuse."""
        found = language(question)
        if found not in self.languages:
            raise ValueError(f"asked in {found}; the languages are {', '.join(self.languages)}")
        return f"{number(question)} in {found}:", found


def _tensor(name, texts, shape):
    array = np.array([text.encode("utf-8") for text in texts], dtype=np.object_)
    return pb_utils.Tensor(name, array.reshape(shape))
