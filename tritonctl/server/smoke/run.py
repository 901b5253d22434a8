# SPDX-License-Identifier: Apache-2.0
"""A smoke test of a server: which models it asks, with which checks, in which order."""

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
from tritonctl.server.smoke.batch_check import batch_check, ensemble_check
from tritonctl.server.smoke.cancel_check import cancel_check
from tritonctl.server.smoke.inputs import is_text
from tritonctl.server.smoke.outcomes import Outcome, SmokeReport
from tritonctl.server.smoke.proof_check import CHECK, cases_of, reference_check
from tritonctl.server.smoke.recording_client import RecordingClient
from tritonctl.server.smoke.single_request import first_prompt
from tritonctl.server.smoke.stream_checks import stream_checks
from tritonctl.server.smoke.subject import Subject
from tritonctl.server.smoke.tensor_checks import tensor_checks
from tritonctl.server.smoke.text_checks import TOKENS, text_checks, text_request
from tritonctl.server.smoke.tokenizer import decoder_of

_PROMPT = "1"
_NO_METRICS = "the address of the server's metrics is unknown: give it with --metrics-url"


@dataclass(frozen=True)
class Plan:
    """What to ask. `models`: these alone, or all that are ready. `metrics`: reads the engines'.

    named: how commands name the server, where its address is not to be repeated.
    project: the server's own, for prompts and checkpoints. cancellation: also leave a stream early;
    tritonserver 2.51 keeps such a request in memory until it ends.
    """

    endpoint: Endpoint
    models: Sequence[str] = ()
    metrics: Callable[[], Metrics] | None = None
    project: Project | None = None
    seconds: float = 30.0
    cancellation: bool = True
    named: str | None = None


def smoke_server(plan: Plan, progress: Progress) -> SmokeReport:
    """Ask every model. Raises ServerError when the server cannot be reached or serves nothing."""
    with RecordingClient(plan.endpoint, plan.seconds) as client:
        states = _states(plan, client)
        configs = _configs(client, [name for name, reason in states.items() if not reason])
        outcomes: list[Outcome] = []
        for name, reason in sorted(states.items()):
            if reason:
                outcomes.append(Outcome(name, "ready", "fail", reason))
                continue
            with progress.step(f"Asking {name}"):
                outcomes += _outcomes(name, configs, plan, client)
    return SmokeReport(plan.endpoint.url, tuple(outcomes))


def _states(plan: Plan, client: RecordingClient) -> dict[str, str]:
    """The models to ask; for each that is not ready the reason, else ""."""
    known = client.models()
    if known is None:
        if not plan.models:
            raise UsageError(
                f"{client.url} lists its models only for callers with its token",
                remedy="name the models: --models NAME",
            )
        return dict.fromkeys(plan.models, "")
    if unknown := [name for name in plan.models if name not in known]:
        raise UsageError(
            f"{client.url} serves no model {', '.join(unknown)}",
            remedy=choices(unknown[0], sorted(known), "it has"),
        )
    if not known:
        raise ServerError(
            f"{client.url} serves no model",
            remedy="load one and try again; the server's log says why none is loaded",
        )
    return {name: known[name] for name in plan.models or known}


def _configs(client: RecordingClient, names: Sequence[str]) -> dict[str, Config]:
    """The configurations of these models and of the steps of ensembles among them."""
    configs: dict[str, Config] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in configs:
            configs[name] = client.config(name)
            waiting += steps_of(configs[name])
    return configs


def _outcomes(
    name: str, configs: Mapping[str, Config], plan: Plan, client: RecordingClient
) -> Iterator[Outcome]:
    users = [user for user in configs if name in all_steps(user, configs)]
    public = plan.project.public if plan.project else ()
    if users and name not in (*plan.models, *public):
        yield Outcome(
            name, "answers", "skipped", f"a step: asked through {', '.join(sorted(users))}"
        )
        return
    parts = [name, *all_steps(name, configs)]
    decoupled = any(is_decoupled(configs[part]) for part in parts)
    subject = Subject(name, configs, client, _repeat(name, plan), decoupled)
    try:
        for check in (_first_checks, _batching, _cancellation):
            for outcome in check(subject, plan):
                yield outcome
                if outcome.status == "fail" and outcome.check == "answers":
                    return
    except TritonctlError as error:  # what keeps a check from asking, such as a dead server
        yield Outcome(subject.name, "asking", "fail", error.problem, None, subject.repeat)


def _first_checks(subject: Subject, plan: Plan) -> Iterator[Outcome]:
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
            yield subject.skipped(CHECK, proof)
        elif proof:
            yield reference_check(subject, proof)


def _batching(subject: Subject, plan: Plan) -> Iterator[Outcome]:
    if "sequence_batching" in subject.config:
        return
    if not subject.client.has_statistics(subject.name):
        yield subject.skipped("batching", "the server's statistics take a token")
        return
    if not subject.steps:
        if not is_text(subject.config):
            yield batch_check(subject)
        return
    if is_text(subject.config):
        request = text_request(subject, _prompt(subject, plan), TOKENS)
    else:
        request = subject.request(subject.inputs())
    yield from ensemble_check(subject, request)


def _cancellation(subject: Subject, plan: Plan) -> Iterator[Outcome]:
    if not (subject.decoupled and is_text(subject.config)):
        return
    entry = plan.project.models.get(subject.name) if plan.project else None
    metrics: Callable[[], Metrics] | str = _NO_METRICS
    if not plan.cancellation:
        metrics = "not asked for"
    elif entry is not None and entry.serving.inline_detokenizer and not entry.serving.fused:
        metrics = "serving.inline_detokenizer: Triton does not pass it on to the engine"
    elif plan.metrics is not None:
        metrics = plan.metrics
    yield cancel_check(subject, _prompt(subject, plan), metrics)


def _prompt(subject: Subject, plan: Plan) -> str:
    entry = plan.project.models.get(subject.name) if plan.project else None
    return first_prompt(entry, plan.project.root) if plan.project and entry else _PROMPT


def _repeat(name: str, plan: Plan) -> str:
    """The command that tests one model again; it names files, never their contents."""
    tls, api_key = plan.endpoint.tls, plan.endpoint.api_key
    options = (
        [("--ca", tls.ca), ("--certificate", tls.certificate), ("--key", tls.key)] if tls else []
    )
    options += [("--api-key-file", api_key.file)] if api_key else []
    in_clear = " --api-key-in-clear" if api_key and api_key.in_clear else ""
    files = "".join(f" {option} {Path(value)}" for option, value in options if value)
    server = plan.named or f"--url {plan.endpoint.url}"
    return f"tritonctl smoke {server} --models {name}{files}{in_clear}"
