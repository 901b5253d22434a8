# SPDX-License-Identifier: Apache-2.0
"""A model that fails has answered; only a connection that failed is "no answer"."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from tritonctl.errors import (
    ModelFailedError,
    RequestRejectedError,
    ServerBusyError,
    ServerError,
    StepGoneError,
    TritonctlError,
)
from tritonctl.frontend.errors import from_tritonctl_error
from tritonctl.protocol.error_map import from_message, from_rpc_error

OWN_WORDS = "the customer id is unknown"
# Of tritonserver 2.51 and of later releases, which number instances twice.
EXCEPTION = (
    "Failed to process the request(s) for model {instance}, message: ValueError: the customer "
    "id is unknown\n\nAt:\n  /usr/lib/python3/json/decoder.py(355): raw_decode\n"
    "  /srv/models/codes/1/model.py(8): execute\n"
)


def failed_call(code: str, message: str, model: str = "codes") -> TritonctlError:
    """The error of a call that ended like this."""
    call: Any = SimpleNamespace(code=lambda: grpc.StatusCode[code], details=lambda: message)
    return from_rpc_error(call, "127.0.0.1:8001", model=model)


@pytest.mark.parametrize(
    "code", ["INTERNAL", "UNKNOWN", "UNIMPLEMENTED", "ALREADY_EXISTS", "CANCELLED", "UNAVAILABLE"]
)
@pytest.mark.parametrize(
    ("prefix", "model", "subject"),
    [("", "codes", "codes"), ("in ensemble 'shop', ", "shop", "a step of shop")],
)
def test_a_model_s_own_error(code: str, prefix: str, model: str, subject: str) -> None:
    """pb_utils.TritonError with each of its codes, of a model and of an ensemble's step."""
    error = failed_call(code, prefix + OWN_WORDS, model)
    assert type(error) is ModelFailedError
    assert error.exit_code == 7
    assert error.problem == f"{subject} answered with an error: {code}: {OWN_WORDS}"
    assert f"`tritonctl logs {model}`" in error.remedy
    assert "tritonctl up" not in error.remedy


@pytest.mark.parametrize("code", ["NOT_FOUND", "INVALID_ARGUMENT"])
def test_a_model_that_refuses_the_request(code: str) -> None:
    """With the two statuses that mean it."""
    error = failed_call(code, OWN_WORDS)
    assert type(error) is RequestRejectedError
    assert error.problem == f"Triton refused the request: {OWN_WORDS}"
    assert error.is_argument == (code == "INVALID_ARGUMENT")


@pytest.mark.parametrize(
    ("instance", "model", "name"),
    [
        ("'codes_0'", "codes", "codes"),
        ("instance 'codes_0_0'", "codes", "codes"),
        ("'codes_0'", "", "codes"),
        ("instance 'codes_0_3'", "", "codes"),
        ("'llama_3_0'", "llama_3", "llama_3"),
    ],
)
def test_an_exception(instance: str, model: str, name: str) -> None:
    """The model, the exception and the line of its code, not that of a library."""
    message = EXCEPTION.format(instance=instance)
    for error in (failed_call("INTERNAL", message, model), from_message(message, model)):
        assert type(error) is ModelFailedError
        assert error.problem == (
            f"{name} failed on this request: ValueError: {OWN_WORDS} "
            "(/srv/models/codes/1/model.py:8, in execute)"
        )
        assert f"`tritonctl logs {name}`" in error.remedy


def test_an_exception_in_a_step() -> None:
    """The step and its ensemble."""
    message = EXCEPTION.format(instance="'codes_0'")
    error = from_message(f"in ensemble 'shop', {message}", "shop")
    assert error.problem.startswith("codes, a step of shop, failed on this request: ValueError: ")
    assert "`tritonctl logs codes`" in error.remedy


def test_an_exception_without_frames() -> None:
    """As some Python errors have; a long one is cut."""
    message = f"Failed to process the request(s) for model 'a_0', message: KeyError: {'x' * 900}"
    error = from_message(message, "a")
    assert error.problem.startswith("a failed on this request: KeyError: xxx")
    assert error.problem.endswith("x ...")
    assert len(error.problem) < 500


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "UNAVAILABLE",
            "failed to connect to all addresses; last error: ipv4:127.0.0.1:1",
        ),
        ("UNAVAILABLE", "Socket closed"),
        ("UNAVAILABLE", "recvmsg:Connection reset by peer"),
        ("UNAVAILABLE", "GOAWAY received"),
        ("UNAVAILABLE", "DNS resolution failed for nowhere:8001"),
        ("UNAVAILABLE", "no healthy upstream"),
        ("UNAVAILABLE", "upstream connect error or disconnect/reset before headers"),
        ("UNKNOWN", "Stream removed"),
        ("INTERNAL", "Received RST_STREAM with error code 2"),
        ("INTERNAL", "there is no response"),
        ("UNIMPLEMENTED", "Method not found!"),
        ("UNIMPLEMENTED", "Received http2 header with status: 404"),
        ("CANCELLED", "Locally cancelled by application!"),
        ("UNAVAILABLE", "keepalive watchdog timeout"),
        ("UNAVAILABLE", ""),
    ],
)
def test_a_connection_that_failed(code: str, message: str) -> None:
    """gRPC's words, those of our HTTP/2 and of Envoy."""
    error = failed_call(code, message)
    assert type(error) is ServerError
    assert error.problem.startswith("no answer from Triton at 127.0.0.1:8001: ")
    assert not isinstance(failed_call(code, message, model=""), ModelFailedError)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("UNAVAILABLE", "Exceeds maximum queue size", ServerBusyError),
        ("INTERNAL", "Stub process 'codes_0_0' is not healthy", StepGoneError),
        ("UNAVAILABLE", "Server is stopping, scheduler for model has stopped", StepGoneError),
    ],
)
def test_what_is_not_the_model_s(code: str, message: str, kind: type[TritonctlError]) -> None:
    """A full queue and a dead process keep their own errors, which are tried again."""
    assert isinstance(failed_call(code, message), kind)


def test_clients_of_the_frontend_see_nothing_of_the_inside() -> None:
    """500, not "try again soon"; the operator reads the log."""
    answer = from_tritonctl_error(from_message(EXCEPTION.format(instance="'stop_0'")), "prompt")
    assert (answer.status, answer.code, answer.param) == (500, "internal_error", None)
    assert "model.py" not in answer.message
