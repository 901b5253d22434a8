# SPDX-License-Identifier: Apache-2.0
"""Smoke tests beside an update: models that come and go are no broken models."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from tritonctl.host.progress import Silent
from tritonctl.protocol.channel import Endpoint
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.run import SmokePlan, smoke_server
from tritonctl.smoke.updates import is_standby_copy, models_in_update, wait_for_update

COPY = "engine__0a1b2c"


def test_a_standby_copy_is_known_by_its_name_and_its_model() -> None:
    """A model of somebody's own that is named alike is none."""
    assert is_standby_copy(COPY, {"engine": "", COPY: ""})
    assert not is_standby_copy(COPY, {COPY: ""})
    assert not is_standby_copy("engine__large", {"engine": "", "engine__large": ""})


@pytest.mark.parametrize(
    ("states", "in_update"),
    [
        ({"engine": ""}, []),
        ({"engine": "UNAVAILABLE: no such file"}, []),
        ({"engine": "LOADING"}, ["engine"]),
        ({"engine": "UNLOADING: soon", "other": ""}, ["engine"]),
        ({"engine": "", COPY: ""}, [COPY]),
        ({"engine": "", COPY: "LOADING"}, [COPY]),
        # A lost request keeps it until Triton exits.
        ({"engine": "", COPY: "UNLOADING"}, []),
    ],
)
def test_models_in_update(states: dict[str, str], in_update: list[str]) -> None:
    """Those that load or unload, and copies that are or will be ready."""
    assert models_in_update(states) == in_update


@pytest.mark.parametrize(
    ("states", "polls"),
    [
        ([{"m": "LOADING"}, {"m": "LOADING"}, {"m": ""}], 3),
        ([{"m": "LOADING"}] * 99, 9),  # 2 s of quarter seconds: 0, then each poll
        ([None], 1),
        ([{}], 1),
    ],
)
def test_the_wait_ends(states: list[dict[str, str] | None], polls: int) -> None:
    """With the update, at its limit, or where nothing can be read."""
    now, answers = 0.0, iter(states)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    last = wait_for_update(lambda: next(answers), 2.0, clock=lambda: now, sleep=sleep)
    assert last == states[polls - 1]
    assert len(list(answers)) == len(states) - polls


class Updating(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """A server whose model answers only once the last index has been read."""

    def __init__(self, indices: list[dict[str, str]]) -> None:
        self.indices = indices

    def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
        return service_pb2.ServerLiveResponse(live=True)

    def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        states = self.indices.pop(0) if len(self.indices) > 1 else self.indices[0]
        answer = service_pb2.RepositoryIndexResponse()
        for name, state in states.items():
            answer.models.add(name=name, version="1", state=state)
        return answer

    def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802
        config = model_config_pb2.ModelConfig(name=request.name, platform="x")
        config.input.add(name="I", data_type="TYPE_INT32", dims=[1])
        config.output.add(name="I", data_type="TYPE_INT32", dims=[1])
        return service_pb2.ModelConfigResponse(config=config)

    def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        if len(self.indices) > 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Request for unknown model")
        return service_pb2.ModelInferResponse(
            model_name=request.model_name,
            outputs=[
                {"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in request.inputs
            ],
            raw_output_contents=request.raw_input_contents,
        )


@contextmanager
def updating(*indices: dict[str, str]) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Updating(list(indices)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def outcomes(url: str, *models: str) -> list[SmokeOutcome]:
    plan = SmokePlan(Endpoint(url), models, seconds=3.0)
    return list(smoke_server(plan, Silent()).outcomes)


READY = {"m": "READY"}
WITH_COPY = {"m": "READY", "m__0a1b2c": "READY"}


@pytest.mark.parametrize("models", [(), ("m",)])
@pytest.mark.parametrize(
    "indices",
    [
        (READY, WITH_COPY, READY),  # it fails as it is swapped
        (READY, {"m": "UNLOADING"}, {"m": "LOADING"}, READY),
        (WITH_COPY, READY),  # it is waited for before the first request
    ],
)
def test_a_model_that_is_replaced(
    indices: tuple[dict[str, str], ...], models: tuple[str, ...]
) -> None:
    """It is asked again once the update has ended, and passes."""
    with updating(*indices) as url:
        tested = outcomes(url, *models)
    assert {one.status for one in tested} <= {"pass", "skipped"}, tested
    assert any(one.check == "answers" and one.status == "pass" for one in tested)


def test_a_step_that_the_update_removes() -> None:
    """It is not in the report: no user can reach it."""
    before = {"m": "READY", "old": "READY"}
    with updating(before, before, {"m": "READY", "old": "UNLOADING"}, READY) as url:
        assert {one.model for one in outcomes(url)} == {"m"}


def test_a_model_that_stays_broken() -> None:
    """No update hides it: the server's models did not change, or never stop changing."""
    with updating(READY, READY, READY, READY, READY, READY) as url:
        assert [one.status for one in outcomes(url) if one.check == "answers"] == ["fail"]
    with updating({"m": "LOADING"}) as url:
        assert [(one.check, one.status) for one in outcomes(url)] == [("ready", "fail")]


def test_a_copy_that_was_left_behind() -> None:
    """The copies of a killed reload fail nothing."""
    with updating(WITH_COPY) as url:
        tested = outcomes(url)
    [copy] = [one for one in tested if one.model == "m__0a1b2c"]
    assert (copy.status, copy.detail) == ("skipped", "a standby copy of `tritonctl reload`")
    assert not [one for one in tested if one.status == "fail"]
