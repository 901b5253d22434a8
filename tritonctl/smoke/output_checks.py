# SPDX-License-Identifier: Apache-2.0
"""Request each output alone, as clients do that need only some of them."""

from __future__ import annotations

from tritonctl.smoke.answer_checks import answer_failure, output_faults
from tritonctl.smoke.model_under_test import ModelUnderTest, SmokeRequest
from tritonctl.smoke.outcomes import SmokeOutcome

_CHECK = "each output"
# Triton's words where it drops a step that another one waits for: TC318 of `tritonctl check`.
_DEADLOCK = "unexpected deadlock"


def each_output_check(subject: ModelUnderTest) -> SmokeOutcome:
    """Request the outputs one by one; an answer without the requested output fails."""
    names = [output["name"] for output in subject.config.get("output", ())]
    if len(names) <= 1:
        return subject.skip_outcome(_CHECK, "it has one output")
    problems: list[str] = []
    failed: SmokeRequest | None = None
    for name in names:
        request = subject.request(subject.inputs(), outputs=(name,))
        [answer] = subject.client.send_all(request.message, stream=subject.decoupled)
        wrong = answer_failure(answer, subject.client.seconds)
        faults = (
            [wrong]
            if wrong
            else output_faults(subject.config, answer.responses, batch=1, names=(name,))
        )
        if faults:
            failed = failed or request
            problems.append(f"{name} alone: {'; '.join(faults)}")
        if answer.timed_out:
            break
    if failed is None:
        return subject.pass_outcome(_CHECK, f"{len(names)} outputs, each requested alone")
    if any(_DEADLOCK in problem for problem in problems):
        problems.append("an output also feeds a step: `tritonctl check --explain TC318`")
    return subject.fail_outcome(_CHECK, "; ".join(problems), failed)
