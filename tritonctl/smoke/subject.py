# SPDX-License-Identifier: Apache-2.0
"""The model that is asked, and how its outcomes are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritonctl.smoke.inputs import (
    Arrays,
    Config,
    as_json,
    has_open_dimensions,
    request_of,
    sequence_parameters,
    set_parameters,
    valid_inputs,
)
from tritonctl.smoke.outcomes import Outcome
from tritonctl.smoke.recording_client import Answer, RecordingClient

# What open dimensions are tried as, until a model takes one: 1, words, pixels.
_OPEN = (1, 16, 224)


@dataclass(frozen=True)
class Request:
    """A request and the arrays that it was made of."""

    message: Any
    arrays: Arrays

    def record(self) -> dict[str, Any]:
        """For people who want to repeat it."""
        return as_json(self.message, self.arrays)


@dataclass
class Subject:
    """A model that is served. `configs`: of all models, for the steps of an ensemble.

    repeat: the command that asks it again. decoupled: whether it streams, by itself or by a step.
    open_dimension: what its open dimensions are filled with; `first_answer` finds it out.
    """

    name: str
    configs: Mapping[str, Config]
    client: RecordingClient
    repeat: str
    decoupled: bool
    open_dimension: int = 1

    @property
    def config(self) -> Config:
        """Its own."""
        return self.configs[self.name]

    @property
    def steps(self) -> list[str]:
        """Of an ensemble, the models that it is made of, nested ones too; [] of other models."""
        return steps_of(self.name, self.configs)

    def request(
        self,
        arrays: Arrays,
        *,
        outputs: tuple[str, ...] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> Request:
        """For this model; where it takes sequences a whole one, unless parameters say otherwise."""
        message = request_of(self.name, self.config, arrays, stream=self.decoupled, outputs=outputs)
        if parameters is None and "sequence_batching" in self.config:
            parameters = sequence_parameters(self.config)[0] | {"sequence_end": True}
        set_parameters(message, parameters or {})
        return Request(message, arrays)

    def inputs(self, *, batch: int = 1, optional: bool = False, longer: int = 0) -> Arrays:
        """Valid values for what it takes."""
        return valid_inputs(
            self.config,
            batch=batch,
            open_dimension=self.open_dimension,
            optional=optional,
            longer=longer,
        )

    def passed(self, check: str, detail: str) -> Outcome:
        """As it should be."""
        return Outcome(self.name, check, "pass", detail)

    def skipped(self, check: str, reason: str) -> Outcome:
        """Not looked at."""
        return Outcome(self.name, check, "skipped", reason)

    def failed(self, check: str, detail: str, request: Request) -> Outcome:
        """Not as it should be."""
        return Outcome(self.name, check, "fail", detail, request.record(), self.repeat)

    def judged(self, check: str, wrong: list[str], right: str, request: Request) -> Outcome:
        """A failure of everything that is wrong, a pass without."""
        if wrong:
            return self.failed(check, "; ".join(wrong), request)
        return self.passed(check, right)


def first_answer(subject: Subject) -> tuple[Request, Answer]:
    """The first request that is answered, else the last one that is not."""
    for size in _OPEN if has_open_dimensions(subject.config) else _OPEN[:1]:
        subject.open_dimension = size
        request = subject.request(subject.inputs())
        [answer] = subject.client.ask(request.message, stream=subject.decoupled)
        if not answer.error or answer.timed_out:
            break
    return request, answer


def steps_of(name: str, configs: Mapping[str, Config]) -> list[str]:
    """The models that an ensemble is made of, nested ones too; [] of other models."""
    found: dict[str, None] = {}
    waiting = [name]
    while waiting:
        scheduling = configs.get(waiting.pop(), {}).get("ensemble_scheduling", {})
        for step in scheduling.get("step", ()):
            if step["model_name"] not in found:
                found[step["model_name"]] = None
                waiting.append(step["model_name"])
    return list(found)
