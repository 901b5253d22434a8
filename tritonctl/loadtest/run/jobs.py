# SPDX-License-Identifier: Apache-2.0
"""Turn a scenario of a project into a job: its server, plan and facts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tritonctl.errors import ConfigurationError, ServerError, UsageError, choices
from tritonctl.loadtest.run.engine_facts import engine_facts
from tritonctl.loadtest.run.execution import LoadJob
from tritonctl.loadtest.run.folder import create_run_folder
from tritonctl.loadtest.run.plan import build_load_plan
from tritonctl.loadtest.run.sampling import MetricsReader
from tritonctl.loadtest.run.server_facts import collect_facts, lacks_model, list_models
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.metrics import scrape
from tritonctl.protocol.model_config import Config, is_decoupled
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.runtimes.server_state import EmbeddedServer

_ADDRESS = re.compile(r"\S+:\d+")


@dataclass(frozen=True)
class LoadTarget:
    """The endpoint under test."""

    url: str
    metrics: MetricsReader | None = None
    shm_prefix: str | None = None  # of the project's own embedded server
    tls: ClientTls | None = None
    api_key: ApiKey | None = None
    models: Sequence[str] | None = None  # with which the project's own server was started
    metadata_endpoint: Endpoint | None = None  # answers metadata requests if a gateway does not

    @property
    def endpoint(self) -> Endpoint:
        """The address with its TLS files and API key."""
        return Endpoint(self.url, self.tls, api_key=self.api_key)

    def metadata_source(self, protocol: str) -> tuple[str, Endpoint]:
        """The protocol and endpoint for metadata requests."""
        return (
            (protocol, self.endpoint)
            if self.metadata_endpoint is None
            else ("grpc", self.metadata_endpoint)
        )


def resolve_target(
    project: Project,
    protocol: str,
    explicit_endpoint: Endpoint | None = None,
    metrics: MetricsReader | None = None,
) -> LoadTarget:
    """Return the explicit endpoint, or else the project's running server.

    Raises ServerError when no server runs, UsageError or HostError for a key that cannot be sent.
    """
    if explicit_endpoint is not None:
        return _explicit_target(explicit_endpoint, protocol, metrics)
    try:
        state = running_server(project)
    except ServerError as error:
        error.remedy += "; or name another server with --url HOST:PORT"
        raise
    metrics = metrics or partial(scrape, state.metrics_url)
    shm_prefix = state.shm_prefix if isinstance(state, EmbeddedServer) else ""
    if protocol == "http":
        url = f"{state.http_address}:{state.http_port}"
        return LoadTarget(url, metrics, shm_prefix, models=state.models)
    return LoadTarget(state.grpc_url, metrics, shm_prefix, state.client_tls, models=state.models)


def _explicit_target(
    endpoint: Endpoint, protocol: str, metrics: MetricsReader | None
) -> LoadTarget:
    if protocol == "http" and endpoint.tls is not None:
        raise UsageError(
            "TLS options need gRPC: the load generators do not support TLS over HTTP",
            remedy="drop --ca, --certificate and --key, or set `protocol: grpc` in the scenario",
        )
    url = endpoint.url.removeprefix("http://").rstrip("/")
    if not _ADDRESS.fullmatch(url):
        raise UsageError(
            f"--url {endpoint.url!r} is not HOST:PORT", remedy="use a value like 127.0.0.1:8001"
        )
    target = LoadTarget(url, metrics, tls=endpoint.tls, api_key=endpoint.api_key)
    _ = target.endpoint.metadata  # an unusable key fails here, not in each generator
    return target


def create_load_job(
    project: Project,
    name: str,
    scenario: Scenario,
    target: LoadTarget,
    *,
    profile: str | None = None,
    engine: str = "asyncio",
    output: Path | None = None,
) -> LoadJob:
    """Create the job of a scenario in a new folder.

    Raises UsageError when the server lacks the model, ConfigurationError when the model cannot
    answer the scenario's kind of request.
    """
    profile = profile or os.environ.get("TRITONCTL_PROFILE")
    job_facts = collect_facts(
        project, name, scenario, *target.metadata_source(scenario.protocol), profile
    )
    if not job_facts["models"]:
        _check_model_exists(scenario, target, server_answers=bool(job_facts.get("server")))
    if target.shm_prefix is not None:  # engine and hardware of other servers are unknown
        job_facts |= engine_facts(project, scenario.model)
    _check_answer_kind(name, scenario, job_facts["models"].get(scenario.model, {}))
    return LoadJob(
        plan=build_load_plan(project.root, scenario, target.endpoint),
        folder=create_run_folder(project, name, output),
        workers=scenario.workers,
        engine=engine,
        metrics=target.metrics,
        facts=job_facts,
        shm_prefix=target.shm_prefix,
    )


def _check_model_exists(scenario: Scenario, target: LoadTarget, *, server_answers: bool) -> None:
    """Raise UsageError when the server reports that it lacks the model.

    The run itself finds out about a server that does not answer.
    """
    (protocol, endpoint), model = target.metadata_source(scenario.protocol), scenario.model
    names = target.models
    if names is None and server_answers:
        names = list_models(protocol, endpoint)
    # A server of tritonctl protects its index.
    if model not in names if names else server_answers and lacks_model(protocol, endpoint, model):
        raise UsageError(
            f"the server has no model {model}",
            remedy=choices(model, names, "it has")
            if names
            else "name a deployed model: `tritonctl status` in the server's project lists them",
        )


def _check_answer_kind(name: str, scenario: Scenario, config: Config) -> None:
    if scenario.kind == "tensors" and is_decoupled(config):
        raise ConfigurationError(
            f"loadtests.{name}.kind: tensors, but {scenario.model} streams, and Triton rejects "
            "unary requests to streaming models",
            remedy="drop `kind` and use prompts with text_input; `serving.unary: true` adds "
            f"{scenario.model}_unary, which sends a single response",
        )
