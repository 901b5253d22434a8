# SPDX-License-Identifier: Apache-2.0
"""The model under test: makes its requests and its outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.protocol.model_config import Config, all_steps
from tritonctl.server.smoke.inputs import (
    Arrays,
    as_json,
    has_open_dimensions,
    request_of,
    sequence_parameters,
    set_parameters,
    valid_inputs,
)
from tritonctl.server.smoke.outcomes import Outcome
from tritonctl.server.smoke.recording_client import Answer, RecordingClient

# Sizes for open dimensions, tried until the model takes one: 1, words, pixels.
_OPEN_SIZES = (1, 16, 224)


@dataclass(frozen=True)
class Request:
    """A request and the arrays that it was made of."""

    message: Any
    arrays: Arrays

    def record(self) -> dict[str, Any]:
        """As JSON, to repeat it."""
        return as_json(self.message, self.arrays)


@dataclass
class Subject:
    """A model that is served. `configs`: of all models, for the steps of an ensemble.

    repeat: the command that tests it again. decoupled: whether it or one of its steps streams.
    open_dimension: the size of its open dimensions; `first_answer` finds it out.
    """

    name: str
    configs: Mapping[str, Config]
    client: RecordingClient
    repeat: str
    decoupled: bool
    open_dimension: int = 1

    @property
    def config(self) -> Config:
        """The model's own configuration."""
        return self.configs[self.name]

    @property
    def steps(self) -> list[str]:
        """As `all_steps`."""
        return all_steps(self.name, self.configs)

    def request(
        self,
        arrays: Arrays,
        *,
        outputs: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Request:
        """A request; to a sequence model a whole sequence, unless parameters say otherwise."""
        message = request_of(self.name, self.config, arrays, stream=self.decoupled, outputs=outputs)
        if parameters is None and "sequence_batching" in self.config:
            parameters = sequence_parameters(self.config)[0] | {"sequence_end": True}
        set_parameters(message, parameters or {})
        return Request(message, arrays)

    def inputs(self, *, batch: int = 1, optional: bool = False, longer: int = 0) -> Arrays:
        """Valid values for the model's inputs."""
        return valid_inputs(
            self.config,
            batch=batch,
            open_dimension=self.open_dimension,
            optional=optional,
            longer=longer,
        )

    def passed(self, check: str, detail: str) -> Outcome:
        """The outcome of a check that found nothing wrong."""
        return Outcome(self.name, check, "pass", detail)

    def skipped(self, check: str, reason: str) -> Outcome:
        """The outcome of a check that could not be made."""
        return Outcome(self.name, check, "skipped", reason)

    def failed(self, check: str, detail: str, request: Request) -> Outcome:
        """The outcome of a check that found something wrong with the answer to `request`."""
        return Outcome(self.name, check, "fail", detail, request.record(), self.repeat)

    def judged(self, check: str, wrong: list[str], right: str, request: Request) -> Outcome:
        """A failure that lists everything that is wrong, or a pass."""
        if wrong:
            return self.failed(check, "; ".join(wrong), request)
        return self.passed(check, right)


def first_answer(subject: Subject) -> tuple[Request, Answer]:
    """The first request that the model answers, or the last one that it does not."""
    for size in _OPEN_SIZES if has_open_dimensions(subject.config) else _OPEN_SIZES[:1]:
        subject.open_dimension = size
        request = subject.request(subject.inputs())
        [answer] = subject.client.ask(request.message, stream=subject.decoupled)
        if not answer.error or answer.timed_out:
            break
    return request, answer
