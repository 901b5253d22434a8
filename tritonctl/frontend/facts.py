# SPDX-License-Identifier: Apache-2.0
"""What is known of a request when it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Facts:
    """What became of a request, for metrics, traces and the access log; filled in as it passes.

    Times are seconds of `time.monotonic`. `model`: the one that was asked, an alias resolved.
    `outcome`: the finish reason, an error's code, or `cancelled` for a client that went away.
    `expected_tokens`: of all answers and their prompts, before any was placed. `placements`: the
    replica of each answer, and why it was chosen. `replica`: host:port of the last one.
    `model_version`: of the model there: the release's number, where one is served. `text`: what was
    asked and answered, where the access log is to have it.
    """

    received: float
    endpoint: str = ""
    model: str = ""
    adapter: str | None = None
    stream: bool = False
    status: int = 0
    outcome: str = ""
    first_token: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    resumes: int = 0
    tenant: str | None = None
    reserved_tokens: int | None = None
    refunded_tokens: int | None = None
    expected_tokens: int | None = None
    replica: str | None = None
    model_version: str | None = None
    placements: list[tuple[str, str]] = field(default_factory=list)
    text: dict[str, Any] = field(default_factory=dict)
