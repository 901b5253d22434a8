# SPDX-License-Identifier: Apache-2.0
"""`loadtests:` of the project file: requests, schedule and duration of a load test.

`tritonctl.loadtest.run.plan` converts this schema to a load plan for the generators in
`loadtests/`. They validate plans with a schema that `loadtest.run.plan_schema` derives from this
one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from tritonctl.project.base import (
    AboveZero,
    HeaderName,
    NotNegative,
    Positive,
    Share,
    Slo,
    Strict,
)


class Normal(Strict):
    """Normal distribution."""

    mean: NotNegative = Field(description="mean")
    std: NotNegative = Field(description="standard deviation; values below 0 count as 0")


class LogNormal(Strict):
    """Log-normal distribution: many short ones, few long ones."""

    median: AboveZero = Field(description="median")
    sigma: NotNegative = Field(description="standard deviation of the logarithm")


class Exponential(Strict):
    """Exponential distribution."""

    mean: AboveZero = Field(description="mean")


class Choice(Strict):
    """One of several numbers."""

    values: list[NotNegative] = Field(description="the numbers to draw from", min_length=1)
    weights: list[NotNegative] | None = Field(None, description="equal when absent")

    @model_validator(mode="after")
    def _weighs_each_value(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values")
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("all weights are 0")
        return self


class Distribution(Strict):
    """A distribution of numbers: exactly one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    uniform: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] | None = Field(
        None, description="[lowest, highest]"
    )
    normal: Normal | None = Field(None, description="around a mean")
    lognormal: LogNormal | None = Field(None, description="many short ones, few long ones")
    exponential: Exponential | None = Field(None, description="decreasing from 0")
    choice: Choice | None = Field(None, description="one of several numbers")
    file: Path | None = Field(
        None, description="file with a number per line, drawn at random", strict=False
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = sorted(type(self).model_fields)
        chosen = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(chosen) != 1:
            detail = f"{' and '.join(chosen)} are given" if chosen else "none is given"
            raise ValueError(f"needs exactly one of {', '.join(kinds)}; {detail}")
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            raise ValueError(f"uniform: {self.uniform[0]:g} is above {self.uniform[1]:g}")
        return self


def _number_or_distribution(value: Any) -> str:
    return "distribution" if isinstance(value, dict | Distribution) else "number"


Number = Annotated[
    Annotated[NotNegative, Tag("number")] | Annotated[Distribution, Tag("distribution")],
    Discriminator(_number_or_distribution),
]


class Cancel(Strict):
    """Clients that cancel before their answer is complete."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["after_tokens"]}, {"required": ["after_ms"]}]}
    )

    share: Share = Field(1, description="share of the class's requests that are cancelled")
    after_tokens: Positive | None = Field(None, description="cancel after so many tokens")
    after_ms: AboveZero | None = Field(None, description="cancel after so many milliseconds")

    @model_validator(mode="after")
    def _knows_when(self) -> Self:
        if (self.after_tokens is None) == (self.after_ms is None):
            raise ValueError("needs one of after_tokens and after_ms")
        return self


class RequestClass(Strict):
    """One class of requests."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = Field(
        "default", description="name in records, figures and traces"
    )
    weight: AboveZero = Field(1, description="relative frequency among the classes")
    prompts: Path = Field(
        description="JSON lines with text_input or messages (kind tensors: inputs: {name: {shape, "
        "datatype, data}}), or a .txt file with a prompt per line",
        strict=False,
    )
    order: Literal["shuffled", "sequential", "random"] = Field(
        "shuffled", description="random: drawn with replacement; others start over at the end"
    )
    max_tokens: Number | None = Field(None, description="number or distribution")
    input_tokens: Number | None = Field(
        None, description="cut or repeat prompts to about this many words"
    )
    parameters: dict[str, Any] = Field(
        {}, description="additional request tensors by name, e.g. {temperature: 0}"
    )
    stream: bool = Field(True, description="stream the answer")
    priority: Annotated[int, Field(ge=1, lt=2**32)] | None = Field(
        None, description="Triton's request parameter; 1 is highest"
    )
    cancel: Cancel | None = Field(None, description="clients that cancel; none when absent")
    turns: Number | None = Field(
        None, description="turns of a chat; each sends the earlier answers too"
    )
    think_seconds: Number | None = Field(None, description="pause between the turns of a chat")


class Closed(Strict):
    """A fixed number of users; each waits for the answer before the next request."""

    process: Literal["closed"] = Field(description="closed loop of users")
    concurrency: Positive = Field(description="number of parallel users")
    think_seconds: Number = Field(0, description="pause between an answer and the next request")


class Constant(Strict):
    """Evenly spaced requests."""

    process: Literal["constant"] = Field(description="constant rate")
    rate: AboveZero = Field(description="requests per second")


class Poisson(Strict):
    """Independent clients: exponential gaps."""

    process: Literal["poisson"] = Field(description="random arrivals of independent clients")
    rate: AboveZero = Field(description="requests per second")


class Gamma(Strict):
    """Gamma-distributed gaps: bursts if cv is above 1."""

    process: Literal["gamma"] = Field(description="arrivals in bursts")
    rate: AboveZero = Field(description="requests per second")
    cv: AboveZero = Field(description="coefficient of variation of the gaps; 1 is poisson")


class Ramp(Strict):
    """A rate that changes linearly over the duration."""

    process: Literal["ramp"] = Field(description="linearly changing rate")
    from_: NotNegative = Field(alias="from", description="requests per second at the start")
    to: NotNegative = Field(description="requests per second at the end")

    @model_validator(mode="after")
    def _sends_something(self) -> Self:
        if self.from_ + self.to == 0:
            raise ValueError("from and to are both 0: nothing would be sent")
        return self


class Spike(Strict):
    """A rate with one peak."""

    process: Literal["spike"] = Field(description="constant rate with one peak")
    rate: AboveZero = Field(description="requests per second outside the peak")
    peak: AboveZero = Field(description="requests per second in the peak")
    at_seconds: NotNegative = Field(description="start of the peak")
    for_seconds: AboveZero = Field(description="duration of the peak")


class RateStep(Strict):
    """A rate with its duration."""

    rate: NotNegative = Field(description="requests per second")
    seconds: AboveZero = Field(description="duration of this rate")


class Steps(Strict):
    """Several rates in sequence."""

    process: Literal["steps"] = Field(description="several rates in sequence")
    steps: list[RateStep] = Field(description="the rates in order", min_length=1)

    @model_validator(mode="after")
    def _sends_something(self) -> Self:
        if not any(step.rate for step in self.steps):
            raise ValueError("the rate of every step is 0: nothing would be sent")
        return self


class Trace(Strict):
    """Requests at recorded times."""

    process: Literal["trace"] = Field(description="recorded times")
    file: Path = Field(
        description='JSON lines: {"at": seconds} and optionally class, max_tokens, text_input',
        strict=False,
    )
    speed: AboveZero = Field(1, description="playback speed; 2: twice as fast as recorded")


Arrivals = Annotated[
    Closed | Constant | Poisson | Gamma | Ramp | Spike | Steps | Trace,
    Field(discriminator="process"),
]
DEFAULT_SECONDS = 30.0


Protocol = Literal["grpc", "http"]


class Users(Strict):
    """Users of the requests, for a gateway that distinguishes users."""

    header: HeaderName = Field(
        description="request header with the user, as in `rollout.user_header`"
    )
    count: Positive = Field(1000, description="number of users, drawn uniformly for each request")


class Load(Strict):
    """Fields that load tests of the project file and load plans share."""

    model: str = Field(description="a model of this project, or another one on the server")
    kind: Literal["text", "tensors"] = Field(
        "text", description="text: streamed answer; tensors: one answer, inputs from the prompts"
    )
    arrivals: Arrivals = Field(description="when requests are sent")
    duration_seconds: AboveZero | None = Field(
        None, description="duration of the schedule; 30 unless `count`, steps or a trace set it"
    )
    count: Positive | None = Field(None, description="number of requests, instead of a duration")
    seed: Annotated[int, Field(ge=0)] = Field(
        1, description="random seed: the same seed sends the same requests"
    )
    timeout_seconds: AboveZero = Field(60, description="timeout of a request; then it has failed")
    cool_down_seconds: NotNegative = Field(
        30,
        description="time for requests in flight at the end; then they count as abandoned",
    )
    users: Users | None = Field(None, description="users of the requests; anonymous when absent")
    resumes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="maximum resumptions of an answer after a broken connection, by `resume_ids` "
        "at the same endpoint; only text over gRPC",
    )

    @model_validator(mode="after")
    def _ends_in_one_way(self) -> Self:
        if self.duration_seconds is not None and self.count is not None:
            raise ValueError("duration_seconds and count are both set: keep one")
        process = self.arrivals.process
        if process == "ramp" and self.count is not None:
            raise ValueError("a ramp needs duration_seconds for its slope, not count")
        return self

    @model_validator(mode="after")
    def _resumes_text(self) -> Self:
        if self.resumes and self.kind != "text":
            raise ValueError("resumes: only for kind text; omit it")
        return self


class Scenario(Load):
    """A load test."""

    protocol: Protocol = Field("grpc", description="http: generate, generate_stream")
    requests: list[RequestClass] = Field(
        description="classes of requests, drawn by weight", min_length=1
    )
    slo: Slo | None = Field(None, description="targets, instead of the model's")
    workers: Positive = Field(1, description="number of generator processes")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [request.name for request in self.requests]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two classes of requests have the name {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _resumes_over_grpc(self) -> Self:
        if self.resumes and self.protocol != "grpc":
            raise ValueError("resumes: HTTP returns no token ids to resume from; use protocol grpc")
        return self
