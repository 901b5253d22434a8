# SPDX-License-Identifier: Apache-2.0
"""Run a smoke test of a server: select models, checks and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonctl.errors import ServerError, TritonctlError, UsageError, choices
from tritonctl.host.progress import Progress
from tritonctl.project.schema import Project
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.metrics import Metrics
from tritonctl.protocol.model_config import Config, all_steps, is_decoupled, steps_of
from tritonctl.smoke.batch_check import concurrent_ensemble_check, dynamic_batching_check
from tritonctl.smoke.cancel_check import cancel_check
from tritonctl.smoke.concurrency_checks import AT_ONCE, at_once_check, own_answers_check
from tritonctl.smoke.inputs import is_text
from tritonctl.smoke.model_under_test import ModelUnderTest
from tritonctl.smoke.outcomes import SmokeOutcome, SmokeReport
from tritonctl.smoke.proof_check import CHECK, cases_of, reference_check
from tritonctl.smoke.recording_client import RecordingClient
from tritonctl.smoke.single_request import first_prompt
from tritonctl.smoke.stream_checks import stream_checks
from tritonctl.smoke.tensor_checks import tensor_checks
from tritonctl.smoke.text_checks import TOKENS, text_checks, text_request
from tritonctl.smoke.tokenizer import decoder_of
from tritonctl.smoke.updates import (
    ModelStates,
    is_standby_copy,
    models_in_update,
    wait_for_update,
)

_PROMPT = "1"
_ATTEMPTS = 3
_NO_METRICS = "the URL of the server's metrics is unknown: set --metrics-url"


@dataclass(frozen=True)
class SmokePlan:
    """Settings of a smoke test."""

    endpoint: Endpoint
    models: Sequence[str] = ()  # empty: all ready models
    metrics: Callable[[], Metrics] | None = None  # reads the engines' metrics
    project: Project | None = None  # the server's, for prompts and checkpoints
    seconds: float = 30.0
    # Also cancel streams; tritonserver 2.51 keeps such requests in memory until it exits.
    cancellation: bool = True
    server_option: str | None = None  # names the server in commands; None: by its URL


@dataclass(frozen=True)
class _ServedModels:
    """The models of a server at one moment."""

    states: ModelStates  # of all models that the server lists
    tested: Sequence[str]
    configs: Mapping[str, Config]  # of the ready ones among `tested`, and of their steps


def smoke_server(plan: SmokePlan, progress: Progress) -> SmokeReport:
    """Test every model. Raises ServerError if the server is unreachable or has no model.

    A model that fails while an update changes the server's models is tested again after it.
    """
    with RecordingClient(plan.endpoint, plan.seconds) as client:
        with progress.step("Waiting until no model is being loaded or unloaded"):
            served = _served_models(plan, client)
        outcomes: list[SmokeOutcome] = []
        for name in sorted(served.tested):
            with progress.step(f"Testing {name}"):
                outcomes += _test_model(name, served, plan, client)
    return SmokeReport(plan.endpoint.url, tuple(outcomes))


def _test_model(
    name: str, served: _ServedModels, plan: SmokePlan, client: RecordingClient
) -> list[SmokeOutcome]:
    """Return the outcomes of one model; of the last attempt, if an update made others fail."""
    for _ in range(_ATTEMPTS):
        outcomes = _attempt(name, served, plan, client)
        if all(outcome.status != "fail" for outcome in outcomes):
            break
        current = client.models()
        if current is None or (current == served.states and not models_in_update(current)):
            break
        served = _served_models(plan, client)
        if name not in served.tested:
            return []  # the update has removed this version
    return outcomes


def _attempt(
    name: str, served: _ServedModels, plan: SmokePlan, client: RecordingClient
) -> list[SmokeOutcome]:
    if is_standby_copy(name, served.states) and name not in plan.models:
        return [SmokeOutcome(name, "answers", "skipped", "a standby copy of `tritonctl reload`")]
    if reason := served.states[name]:
        return [SmokeOutcome(name, "ready", "fail", reason)]
    return list(_model_outcomes(name, served.configs, plan, client))


def _served_models(
    plan: SmokePlan, client: RecordingClient, attempts: int = _ATTEMPTS
) -> _ServedModels:
    """Return the models once no update changes them, or after `plan.seconds`.

    Raises UsageError for models that the server does not have.
    """
    states = wait_for_update(client.models, plan.seconds)
    if states is None:
        if not plan.models:
            raise UsageError(
                f"{client.url} lists its models only to callers with its token",
                remedy="name the models: --models NAME",
            )
        states = dict.fromkeys(plan.models, "")
    tested = _tested_names(plan, client.url, states)
    try:
        configs = _configs(client, [name for name in tested if not states[name]])
    except TritonctlError:  # such as for a model that was unloaded in between
        if attempts == 1:
            raise
        return _served_models(plan, client, attempts - 1)
    return _ServedModels(states, tested, configs)


def _tested_names(plan: SmokePlan, url: str, states: ModelStates) -> Sequence[str]:
    if unknown_models := [name for name in plan.models if name not in states]:
        raise UsageError(
            f"{url} has no model {', '.join(unknown_models)}",
            remedy=choices(unknown_models[0], sorted(states), "it has"),
        )
    if not states:
        raise ServerError(
            f"{url} has no model",
            remedy="load a model and try again; the server's log shows load failures",
        )
    return plan.models or list(states)


def _configs(client: RecordingClient, names: Sequence[str]) -> dict[str, Config]:
    """Return the configurations of these models and of their ensembles' steps."""
    configs: dict[str, Config] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in configs:
            configs[name] = client.config(name)
            pending += steps_of(configs[name])
    return configs


def _model_outcomes(
    name: str, configs: Mapping[str, Config], plan: SmokePlan, client: RecordingClient
) -> Iterator[SmokeOutcome]:
    users = [user for user in configs if name in all_steps(user, configs)]
    public = plan.project.public if plan.project else ()
    if users and name not in (*plan.models, *public):
        yield SmokeOutcome(
            name, "answers", "skipped", f"a step: tested through {', '.join(sorted(users))}"
        )
        return
    step_names = [name, *all_steps(name, configs)]
    decoupled = any(is_decoupled(configs[part]) for part in step_names)
    subject = ModelUnderTest(name, configs, client, _repeat_command(name, plan), decoupled)
    failed: set[str] = set()
    try:
        for checks in (_first_checks, _concurrency_checks, _batching_checks, _cancellation_checks):
            # At once, the same mistake would fail again.
            if (failed and checks is _concurrency_checks) or (
                AT_ONCE in failed and checks is _batching_checks
            ):
                continue
            for outcome in checks(subject, plan):
                yield outcome
                if outcome.status == "fail":
                    failed.add(outcome.check)
                if outcome.status == "fail" and outcome.check == "answers":
                    return
    except TritonctlError as error:  # the check could not send requests, such as to a dead server
        yield SmokeOutcome(subject.name, "asking", "fail", error.problem, None, subject.repeat)


def _first_checks(subject: ModelUnderTest, plan: SmokePlan) -> Iterator[SmokeOutcome]:
    if is_text(subject.config):
        configs = {step: subject.configs[step] for step in subject.steps}
        decode = decoder_of(plan.project, subject.name, configs)
        yield from text_checks(subject, _prompt(subject, plan), decode)
    elif subject.decoupled:
        yield from stream_checks(subject)
    else:
        yield from tensor_checks(subject)
        proof = cases_of(plan.project, subject.name)
        if isinstance(proof, str):
            yield subject.skip_outcome(CHECK, proof)
        elif proof:
            yield reference_check(subject, proof)


def _concurrency_checks(subject: ModelUnderTest, _plan: SmokePlan) -> Iterator[SmokeOutcome]:
    """Check several requests at once; `_batching_checks` does so for texts and ensembles."""
    if is_text(subject.config):
        return
    if not subject.steps:
        outcome = at_once_check(subject)
        yield outcome
        if outcome.status != "pass":
            return
    yield own_answers_check(subject)


def _batching_checks(subject: ModelUnderTest, plan: SmokePlan) -> Iterator[SmokeOutcome]:
    if "sequence_batching" in subject.config:
        return
    if not subject.client.has_statistics(subject.name):
        yield subject.skip_outcome("batching", "the server's statistics require a token")
        return
    if not subject.steps:
        if not is_text(subject.config):
            yield dynamic_batching_check(subject)
        return
    if is_text(subject.config):
        request = text_request(subject, _prompt(subject, plan), TOKENS)
    else:
        request = subject.request(subject.inputs())
    yield from concurrent_ensemble_check(subject, request)


def _cancellation_checks(subject: ModelUnderTest, plan: SmokePlan) -> Iterator[SmokeOutcome]:
    if not (subject.decoupled and is_text(subject.config)):
        return
    entry = plan.project.models.get(subject.name) if plan.project else None
    metrics: Callable[[], Metrics] | str = _NO_METRICS
    if not plan.cancellation:
        metrics = "not requested"
    elif entry is not None and entry.serving.inline_detokenizer and not entry.serving.fused:
        metrics = "serving.inline_detokenizer: Triton does not pass it on to the engine"
    elif plan.metrics is not None:
        metrics = plan.metrics
    yield cancel_check(subject, _prompt(subject, plan), metrics)


def _prompt(subject: ModelUnderTest, plan: SmokePlan) -> str:
    entry = plan.project.models.get(subject.name) if plan.project else None
    return first_prompt(entry, plan.project.root) if plan.project and entry else _PROMPT


def _repeat_command(name: str, plan: SmokePlan) -> str:
    """Return the command that repeats one model's test; it names files, not their contents."""
    tls, api_key = plan.endpoint.tls, plan.endpoint.api_key
    options = (
        [("--ca", tls.ca), ("--certificate", tls.certificate), ("--key", tls.key)] if tls else []
    )
    options += [("--api-key-file", api_key.file)] if api_key else []
    in_clear = " --api-key-in-clear" if api_key and api_key.in_clear else ""
    files = "".join(f" {option} {Path(value)}" for option, value in options if value)
    server = plan.server_option or f"--url {plan.endpoint.url}"
    return f"tritonctl smoke {server} --models {name}{files}{in_clear}"
