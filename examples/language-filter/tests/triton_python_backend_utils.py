# SPDX-License-Identifier: Apache-2.0
"""A test stand-in for Triton's module of this name, with the classes that a model needs."""


class Tensor:
    """A named numpy array."""

    def __init__(self, name, array):
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class TritonError(Exception):
    """An error with one of Triton's codes."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED = range(6)

    def __init__(self, message, code=INTERNAL):
        super().__init__(message)
        self._code = code

    def message(self):
        return str(self)

    def code(self):
        return self._code


class TritonModelException(Exception):
    """A model cannot be loaded or cannot answer."""


class InferenceRequest:
    """Input tensors; an optional one may be missing."""

    def __init__(self, inputs, parameters=""):
        self._inputs, self._parameters = list(inputs), parameters

    def inputs(self):
        return self._inputs

    def parameters(self):
        return self._parameters


class InferenceResponse:
    """Output tensors, or an error."""

    def __init__(self, output_tensors=(), error=None):
        self._outputs, self._error = list(output_tensors), error

    def output_tensors(self):
        return self._outputs

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


def _named(tensors, name):
    return next((tensor for tensor in tensors if tensor.name() == name), None)


def get_input_tensor_by_name(request, name):
    """Return a request's tensor, or None."""
    return _named(request.inputs(), name)


def get_output_tensor_by_name(response, name):
    """Return a response's tensor, or None."""
    return _named(response.output_tensors(), name)
