# SPDX-License-Identifier: Apache-2.0
"""The model under test: creates its requests and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.protocol.model_config import Config, all_steps
from tritonctl.smoke.inputs import (
    Arrays,
    as_json,
    has_open_dimensions,
    request_of,
    sequence_parameters,
    set_parameters,
    valid_inputs,
)
from tritonctl.smoke.outcomes import SmokeOutcome
from tritonctl.smoke.recording_client import RecordedAnswer, RecordingClient

# Sizes for open dimensions, tried until the model accepts one: 1, words, pixels.
_OPEN_SIZES = (1, 16, 224)


@dataclass(frozen=True)
class SmokeRequest:
    """A request and its input arrays."""

    message: Any
    arrays: Arrays

    def record(self) -> dict[str, Any]:
        """Convert to JSON, to repeat the request."""
        return as_json(self.message, self.arrays)


@dataclass
class ModelUnderTest:
    """A live model under test."""

    name: str
    configs: Mapping[str, Config]  # of all models, for the steps of an ensemble
    client: RecordingClient
    repeat: str  # the command that repeats the test
    decoupled: bool  # whether it or one of its steps streams
    open_dimension: int = 1  # size of its open dimensions, which `first_answer` finds

    @property
    def config(self) -> Config:
        """The model's configuration."""
        return self.configs[self.name]

    @property
    def steps(self) -> list[str]:
        """All steps of the model, as `all_steps`."""
        return all_steps(self.name, self.configs)

    def request(
        self,
        arrays: Arrays,
        *,
        outputs: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> SmokeRequest:
        """Create a request; for a sequence model a whole sequence, unless parameters differ."""
        message = request_of(self.name, self.config, arrays, stream=self.decoupled, outputs=outputs)
        if parameters is None and "sequence_batching" in self.config:
            parameters = sequence_parameters(self.config)[0] | {"sequence_end": True}
        set_parameters(message, parameters or {})
        return SmokeRequest(message, arrays)

    def inputs(
        self, *, batch: int = 1, optional: bool = False, extra_length: int = 0, fill: int = 1
    ) -> Arrays:
        """Return valid values for the model's inputs, as `valid_inputs`."""
        return valid_inputs(
            self.config,
            batch=batch,
            open_dimension=self.open_dimension,
            optional=optional,
            extra_length=extra_length,
            fill=fill,
        )

    def pass_outcome(self, check: str, detail: str) -> SmokeOutcome:
        """Return the outcome of a passed check."""
        return SmokeOutcome(self.name, check, "pass", detail)

    def skip_outcome(self, check: str, reason: str) -> SmokeOutcome:
        """Return the outcome of a check that could not run."""
        return SmokeOutcome(self.name, check, "skipped", reason)

    def fail_outcome(self, check: str, detail: str, request: SmokeRequest) -> SmokeOutcome:
        """Return the outcome of a failed check of the answer to `request`."""
        return SmokeOutcome(self.name, check, "fail", detail, request.record(), self.repeat)

    def verdict_outcome(
        self, check: str, problems: list[str], success_detail: str, request: SmokeRequest
    ) -> SmokeOutcome:
        """Return a failure that lists all problems, or a pass."""
        if problems:
            return self.fail_outcome(check, "; ".join(problems), request)
        return self.pass_outcome(check, success_detail)


def first_answer(subject: ModelUnderTest) -> tuple[SmokeRequest, RecordedAnswer]:
    """Return the first request that the model answers, else the last one, with its answer."""
    for size in _OPEN_SIZES if has_open_dimensions(subject.config) else _OPEN_SIZES[:1]:
        subject.open_dimension = size
        request = subject.request(subject.inputs())
        [answer] = subject.client.send_all(request.message, stream=subject.decoupled)
        if not answer.error or answer.timed_out:
            break
    return request, answer
