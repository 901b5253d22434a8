# SPDX-License-Identifier: Apache-2.0
"""The section of the project file for rollouts of new releases."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from tritonctl.project.base import AboveZero, HeaderName, NotNegative, Positive, Share, Strict

ALL = 100  # per cent

Percent = Annotated[float, Field(gt=0, le=ALL, allow_inf_nan=False)]
AboveZeroShare = Annotated[float, Field(gt=0, lt=1)]
SlowSeconds = Annotated[float, Field(ge=0, le=3600)]


class Tolerated(Strict):
    """Tolerated regressions of a candidate, in addition to statistical noise."""

    divergence: Share = Field(
        0.02,
        description="share of shadowed requests answered differently, beyond stable's own noise; "
        "raise it for an engine that must differ, such as one in another precision",
    )
    slowness: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.005,
        description="probability that a request is slower than a simultaneous one of stable, "
        "beyond the 0.5 of equal releases; if latencies vary by a third, 1 % slower is about 0.01",
    )
    slow_seconds: SlowSeconds = Field(
        15.0,
        description="duration of slow spells of a single version on a busy machine, by any "
        "factor. No step follows meanwhile, and a slower release is detected that much later. 0: "
        "machines without disturbances of single versions",
    )
    failures: AboveZeroShare = Field(
        0.01, description="share of failed requests once stable has no traffic to compare with"
    )
    stalls: AboveZeroShare = Field(
        0.0002,
        description="share of requests without a token for 5 s, if stable has no more",
    )
    memory_growth: NotNegative = Field(
        0.02, description="growth of the process within half a minute, as a share of its memory"
    )


class Rollout(Strict):
    """Migration of users from the stable release to a candidate, with automatic rollback."""

    user_header: HeaderName | None = Field(
        None,
        description="request header that identifies the user; a user stays with a release. A "
        "rollout needs it, and requests without it go to stable",
    )
    release_header: HeaderName = Field(
        "x-tritonctl-release",
        description="request header for testers: `candidate` or `stable`, for any user",
    )

    steps: list[Percent] = Field(
        [1, 5, 25, 50, 100],
        description="percentage of users on the candidate in each step; the last is 100",
        min_length=1,
        max_length=100,
    )
    hold_seconds: AboveZero = Field(60.0, description="minimum duration of each step")
    minimum_requests: Positive = Field(
        50, description="minimum user requests to the candidate in a step before the next one"
    )
    false_rollback_rate: AboveZeroShare = Field(
        0.01, description="maximum probability of rolling back a release that is as good as stable"
    )
    warm_up_seconds: NotNegative = Field(
        10.0,
        description="time after the candidate's first request before its latency and memory count",
    )
    scrape_timeout_seconds: AboveZero = Field(
        10.0, description="time without metrics of a version before a rollback"
    )
    keep_warm_seconds: NotNegative = Field(
        600.0, description="time that the other version stays loaded after rollback or promotion"
    )
    shadow: Share = Field(
        0.0,
        description="share of requests sent to both releases to compare the answers: twice to "
        "stable, once to the candidate; none while the servers are full",
    )
    keep_prompts: bool = Field(
        False,
        description="write prompts and answers of shadowed requests to a file that only you can "
        "read, as examples of differences",
    )
    tolerated: Tolerated = Field(
        Tolerated(), description="regressions that do not cause a rollback"
    )

    @model_validator(mode="after")
    def _steps_rise(self) -> Self:
        for previous, current in zip(self.steps, self.steps[1:], strict=False):
            if current <= previous:
                raise ValueError(
                    f"steps must increase: {current:g} follows {previous:g}; write e.g. [1, 5, 100]"
                )
        if self.steps[-1] != ALL:
            raise ValueError(f"steps end at {self.steps[-1]:g}: the last must be 100, all users")
        return self
