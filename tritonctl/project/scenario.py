# SPDX-License-Identifier: Apache-2.0
"""`loadtests:` of the project file: what is sent to a model, when, and for how long.

Pure schema; `tritonctl.loadtest.run.plan` makes a load plan of it, which the generators in
`loadtests/` carry out. They check plans with the schema that `loadtest.run.plan_schema` makes of
this.
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

    mean: NotNegative = Field(description="its centre")
    std: NotNegative = Field(description="standard deviation; what falls below 0 counts as 0")


class LogNormal(Strict):
    """Log-normal distribution: many short ones, few long ones."""

    median: AboveZero = Field(description="half of the numbers are below it")
    sigma: NotNegative = Field(description="standard deviation of the logarithm")


class Exponential(Strict):
    """Exponential distribution."""

    mean: AboveZero = Field(description="average of the numbers")


class Choice(Strict):
    """One of several numbers."""

    values: list[NotNegative] = Field(description="the numbers to draw from", min_length=1)
    weights: list[NotNegative] | None = Field(None, description="equal when absent")

    @model_validator(mode="after")
    def _weighs_each_value(self) -> Self:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.weights)} weights for {len(self.values)} values")
        if self.weights is not None and sum(self.weights) <= 0:
            raise ValueError("every weight is 0: nothing could be drawn")
        return self


class Distribution(Strict):
    """Where numbers are drawn from: exactly one of these."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    uniform: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] | None = Field(
        None, description="[lowest, highest]"
    )
    normal: Normal | None = Field(None, description="around a mean")
    lognormal: LogNormal | None = Field(None, description="many short ones, few long ones")
    exponential: Exponential | None = Field(None, description="falling off from 0")
    choice: Choice | None = Field(None, description="one of given numbers")
    file: Path | None = Field(
        None, description="a number per line; one is drawn each time", strict=False
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = sorted(type(self).model_fields)
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            which = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"needs exactly one of {', '.join(kinds)}; {which}")
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

    share: Share = Field(1, description="of the requests of this class")
    after_tokens: Positive | None = Field(None, description="tokens that it has received")
    after_ms: AboveZero | None = Field(None, description="milliseconds since it was sent")

    @model_validator(mode="after")
    def _knows_when(self) -> Self:
        if (self.after_tokens is None) == (self.after_ms is None):
            raise ValueError("needs one of after_tokens and after_ms")
        return self


class RequestClass(Strict):
    """One class of requests."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")] = Field(
        "default", description="what records, figures and traces call it"
    )
    weight: AboveZero = Field(1, description="how often it is drawn, compared with the others")
    prompts: Path = Field(
        description="JSON lines with text_input or messages (kind tensors: inputs: {name: {shape, "
        "datatype, data}}), or a .txt file with a prompt per line",
        strict=False,
    )
    order: Literal["shuffled", "sequential", "random"] = Field(
        "shuffled", description="random: drawn with replacement; the others start again at the end"
    )
    max_tokens: Number | None = Field(None, description="a number or a distribution")
    input_tokens: Number | None = Field(
        None, description="prompts are cut or repeated to about this many words"
    )
    parameters: dict[str, Any] = Field(
        {}, description="further tensors of the request by name, e.g. {temperature: 0}"
    )
    stream: bool = Field(True, description="the answer comes token by token")
    priority: Annotated[int, Field(ge=1, lt=2**32)] | None = Field(
        None, description="Triton's request parameter; 1 goes first"
    )
    cancel: Cancel | None = Field(None, description="clients that leave early; none when absent")
    turns: Number | None = Field(
        None, description="turns of a chat; each sends the earlier answers along"
    )
    think_seconds: Number | None = Field(None, description="between the turns of a chat")


class Closed(Strict):
    """A fixed number of users; each waits for the answer before the next request."""

    process: Literal["closed"] = Field(description="users who wait for their answers")
    concurrency: Positive = Field(description="users at the same time")
    think_seconds: Number = Field(0, description="between an answer and the next request")


class Constant(Strict):
    """Evenly spaced requests."""

    process: Literal["constant"] = Field(description="an even rate")
    rate: AboveZero = Field(description="requests per second")


class Poisson(Strict):
    """Independent clients: exponential gaps."""

    process: Literal["poisson"] = Field(description="a random rate, as of independent clients")
    rate: AboveZero = Field(description="requests per second")


class Gamma(Strict):
    """Gamma-distributed gaps: bursts where cv is above 1."""

    process: Literal["gamma"] = Field(description="a rate with bursts")
    rate: AboveZero = Field(description="requests per second")
    cv: AboveZero = Field(description="coefficient of variation of the gaps; 1 is poisson")


class Ramp(Strict):
    """A rate that changes linearly over the duration."""

    process: Literal["ramp"] = Field(description="a rate that changes evenly")
    from_: NotNegative = Field(alias="from", description="requests per second at the start")
    to: NotNegative = Field(description="requests per second at the end")

    @model_validator(mode="after")
    def _sends_something(self) -> Self:
        if self.from_ + self.to == 0:
            raise ValueError("from and to are both 0: nothing would be sent")
        return self


class Spike(Strict):
    """A rate with one peak."""

    process: Literal["spike"] = Field(description="a rate with one peak")
    rate: AboveZero = Field(description="requests per second outside the peak")
    peak: AboveZero = Field(description="requests per second in it")
    at_seconds: NotNegative = Field(description="when the peak begins")
    for_seconds: AboveZero = Field(description="how long the peak lasts")


class RateStep(Strict):
    """A rate and how long it holds."""

    rate: NotNegative = Field(description="requests per second")
    seconds: AboveZero = Field(description="how long this rate holds")


class Steps(Strict):
    """Rates one after the other."""

    process: Literal["steps"] = Field(description="several rates in turn")
    steps: list[RateStep] = Field(description="in their order", min_length=1)

    @model_validator(mode="after")
    def _sends_something(self) -> Self:
        if not any(step.rate for step in self.steps):
            raise ValueError("the rate of every step is 0: nothing would be sent")
        return self


class Trace(Strict):
    """Requests at recorded times."""

    process: Literal["trace"] = Field(description="times that were recorded")
    file: Path = Field(
        description='JSON lines: {"at": seconds} and, if wanted, class, max_tokens, text_input',
        strict=False,
    )
    speed: AboveZero = Field(1, description="2: twice as fast as it was recorded")


Arrivals = Annotated[
    Closed | Constant | Poisson | Gamma | Ramp | Spike | Steps | Trace,
    Field(discriminator="process"),
]
DEFAULT_SECONDS = 30.0


Protocol = Literal["grpc", "http"]


class Users(Strict):
    """Who asks: each request is one user's, as a gateway that tells users apart sees it."""

    header: HeaderName = Field(
        description="request header that holds the user, as `rollout.user_header`"
    )
    count: Positive = Field(1000, description="different users; each request's is drawn, evenly")


class Load(Strict):
    """What a load test of the project file and a load plan have in common."""

    model: str = Field(description="a model of this project, or any other on the server")
    kind: Literal["text", "tensors"] = Field(
        "text", description="text: a streamed answer; tensors: one answer, inputs from the prompts"
    )
    arrivals: Arrivals = Field(description="when requests are sent")
    duration_seconds: AboveZero | None = Field(
        None, description="of the schedule; 30 unless `count`, steps or a trace say it"
    )
    count: Positive | None = Field(None, description="requests, instead of a duration")
    seed: Annotated[int, Field(ge=0)] = Field(
        1, description="of everything random: the same seed sends the same requests"
    )
    timeout_seconds: AboveZero = Field(60, description="of one request; after that it has failed")
    cool_down_seconds: NotNegative = Field(
        30,
        description="how long requests in flight may take at the end; then they count as abandoned",
    )
    users: Users | None = Field(None, description="who asks; nobody in particular when absent")
    resumes: Annotated[int, Field(ge=0)] = Field(
        0,
        description="how often an answer whose connection breaks goes on, by `resume_ids`, at the "
        "same endpoint; text by gRPC only",
    )

    @model_validator(mode="after")
    def _ends_in_one_way(self) -> Self:
        if self.duration_seconds is not None and self.count is not None:
            raise ValueError("duration_seconds and count are both given: keep one")
        process = self.arrivals.process
        if process == "ramp" and self.count is not None:
            raise ValueError("a ramp needs duration_seconds, not count: it says how steep it is")
        return self

    @model_validator(mode="after")
    def _resumes_text(self) -> Self:
        if self.resumes and self.kind != "text":
            raise ValueError("resumes: only for kind text; leave it out")
        return self


class Scenario(Load):
    """A load test."""

    protocol: Protocol = Field("grpc", description="http: generate, generate_stream")
    requests: list[RequestClass] = Field(description="drawn by weight", min_length=1)
    slo: Slo | None = Field(None, description="instead of the model's own")
    workers: Positive = Field(1, description="generator processes")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [request.name for request in self.requests]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two classes of requests are called {', '.join(repeated)}")
        return self

    @model_validator(mode="after")
    def _resumes_over_grpc(self) -> Self:
        if self.resumes and self.protocol != "grpc":
            raise ValueError("resumes: HTTP tells no token ids to go on from; use protocol grpc")
        return self
