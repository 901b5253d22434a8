# SPDX-License-Identifier: Apache-2.0
"""The part of the project file that says how a new release takes over from the one that serves."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tritonctl.project.base import AboveZero, HeaderName, NotNegative, Positive, Share, Strict

ALL = 100  # per cent

Percent = Annotated[float, Field(gt=0, le=ALL, allow_inf_nan=False)]
AboveZeroShare = Annotated[float, Field(gt=0, lt=1)]
SlowSeconds = Annotated[float, Field(ge=0, le=3600)]


class Tolerated(Strict):
    """What a candidate may be worse by without being rolled back, beyond chance."""

    divergence: Share = Field(
        0.02,
        description="share of shadowed questions that it answers differently, beyond stable's own "
        "noise; raise it for an engine that must differ, such as one in another precision",
    )
    slowness: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.005,
        description="chance of a request to be slower than one of stable at the same time, beyond "
        "the 0.5 of equals; where times vary by a third, 1 % longer is about 0.01",
    )
    slow_seconds: SlowSeconds = Field(
        15.0,
        description="that a version may be slow by itself, by any factor, as its machine is busy; "
        "meanwhile no step follows, and a slower release is found so much later; 0: machines that "
        "nothing disturbs one at a time",
    )
    failures: AboveZeroShare = Field(
        0.01, description="share of requests that fail once stable has none to compare with"
    )
    stalls: AboveZeroShare = Field(
        0.0002,
        description="share of requests that make no token for 5 s, where stable has no more",
    )
    memory_growth: NotNegative = Field(
        0.02, description="of the process within half a minute, as a share of its memory"
    )


class Rollout(Strict):
    """How users move from the stable release to a candidate, and what takes them back."""

    user_header: HeaderName | None = Field(
        None,
        description="request header that says whose request it is: a user stays with a release; "
        "a rollout needs it, and requests without it go to stable",
    )
    release_header: HeaderName = Field(
        "x-tritonctl-release",
        description="request header for testers: `candidate` or `stable`, whoever the user is",
    )

    steps: list[Percent] = Field(
        [1, 5, 25, 50, 100],
        description="per cent of the users that the candidate has, step by step; the last is 100",
        min_length=1,
        max_length=100,
    )
    hold_seconds: AboveZero = Field(60.0, description="that each step lasts at least")
    minimum_requests: Positive = Field(
        50, description="of users, to the candidate in a step, before the next one"
    )
    false_rollback_rate: AboveZeroShare = Field(
        0.01, description="share of rollouts of a release that is no worse that may be rolled back"
    )
    warm_up_seconds: NotNegative = Field(
        10.0,
        description="after the candidate's first request, before its times and memory are judged",
    )
    scrape_timeout_seconds: AboveZero = Field(
        10.0, description="without metrics of a version: rolled back"
    )
    keep_warm_seconds: NotNegative = Field(
        600.0, description="that the other version stays loaded after a rollback or promotion"
    )
    shadow: Share = Field(
        0.0,
        description="share of the requests that are asked of both, to compare the answers: of "
        "stable twice, of the candidate once; never while the servers are full",
    )
    keep_prompts: bool = Field(
        False,
        description="of these requests, prompts and answers are written to a file that only you "
        "can read, for examples of what differs",
    )
    tolerated: Tolerated = Field(Tolerated(), description="what is no reason to roll back")

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        for before, after in zip(self.steps, self.steps[1:], strict=False):
            if after <= before:
                raise ValueError(
                    f"steps do not rise: {after:g} follows {before:g}; expected as in [1, 5, 100]"
                )
        if self.steps[-1] != ALL:
            raise ValueError(
                f"steps end at {self.steps[-1]:g}: the last must be 100, all of the users"
            )
        return self
