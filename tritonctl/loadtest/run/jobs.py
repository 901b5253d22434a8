# SPDX-License-Identifier: Apache-2.0
"""Turns a scenario of a project into a job: its server, plan and facts."""

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
from tritonctl.loadtest.run.folder import new_folder
from tritonctl.loadtest.run.plan import load_plan
from tritonctl.loadtest.run.sampling import Scrape
from tritonctl.loadtest.run.server_facts import facts, index_of, is_unknown
from tritonctl.project.scenario import Scenario
from tritonctl.project.schema import Project
from tritonctl.protocol.api_key import ApiKey
from tritonctl.protocol.channel import ClientTls, Endpoint
from tritonctl.protocol.metrics import scrape
from tritonctl.protocol.model_config import Config, is_decoupled
from tritonctl.server.lifecycle import running_server
from tritonctl.server.state import EmbeddedServer

_ADDRESS = re.compile(r"\S+:\d+")


@dataclass(frozen=True)
class Target:
    """The endpoint under test. `metrics`: reads those of its engines; `shm_prefix`: of the
    project's own embedded server; `models`: what the project's own was started with; `described`:
    who says what is served, in place of a gateway that does not.
    """

    url: str
    metrics: Scrape | None = None
    shm_prefix: str | None = None
    tls: ClientTls | None = None
    api_key: ApiKey | None = None
    models: Sequence[str] | None = None
    described: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """The address and what calls to it need."""
        return Endpoint(self.url, self.tls, api_key=self.api_key)

    def source(self, protocol: str) -> tuple[str, Endpoint]:
        """The protocol, and who is asked by it what is served."""
        return (protocol, self.endpoint) if self.described is None else ("grpc", self.described)


def target_of(
    project: Project, protocol: str, named: Endpoint | None = None, metrics: Scrape | None = None
) -> Target:
    """The named endpoint, or else the project's running server.

    Raises ServerError when none runs, UsageError or HostError for a key that cannot be sent.
    """
    if named is not None:
        return _named(named, protocol, metrics)
    try:
        state = running_server(project)
    except ServerError as error:
        error.remedy += "; or name another one with --url HOST:PORT"
        raise
    metrics = metrics or partial(scrape, state.metrics_url)
    shm_prefix = state.shm_prefix if isinstance(state, EmbeddedServer) else ""
    if protocol == "http":
        url = f"{state.http_address}:{state.http_port}"
        return Target(url, metrics, shm_prefix, models=state.models)
    return Target(state.grpc_url, metrics, shm_prefix, state.client_tls, models=state.models)


def _named(named: Endpoint, protocol: str, metrics: Scrape | None) -> Target:
    if protocol == "http" and named.tls is not None:
        raise UsageError(
            "--ca and the like are for gRPC: the load generators speak no TLS over HTTP",
            remedy="leave them out, or set `protocol: grpc` in the scenario",
        )
    url = named.url.removeprefix("http://").rstrip("/")
    if not _ADDRESS.fullmatch(url):
        raise UsageError(
            f"--url {named.url!r} is not HOST:PORT", remedy="give one, as 127.0.0.1:8001"
        )
    target = Target(url, metrics, tls=named.tls, api_key=named.api_key)
    _ = target.endpoint.metadata  # a key that cannot be sent fails here, not in each generator
    return target


def load_job(
    project: Project,
    name: str,
    scenario: Scenario,
    target: Target,
    *,
    profile: str | None = None,
    engine: str = "asyncio",
    output: Path | None = None,
) -> LoadJob:
    """The job of a scenario, in a new folder.

    Raises UsageError for a model that the server does not have, ConfigurationError for one that
    cannot answer as the scenario asks.
    """
    profile = profile or os.environ.get("TRITONCTL_PROFILE")
    known = facts(project, name, scenario, *target.source(scenario.protocol), profile)
    if not known["models"]:
        _refuse_unknown(scenario, target, answers=bool(known.get("server")))
    if target.shm_prefix is not None:  # of others nobody knows what they serve, and on what
        known |= engine_facts(project, scenario.model)
    _refuse_streams(name, scenario, known["models"].get(scenario.model, {}))
    return LoadJob(
        plan=load_plan(project.root, scenario, target.endpoint),
        folder=new_folder(project, name, output),
        workers=scenario.workers,
        engine=engine,
        metrics=target.metrics,
        facts=known,
        shm_prefix=target.shm_prefix,
    )


def _refuse_unknown(scenario: Scenario, target: Target, *, answers: bool) -> None:
    """A model that the server says it does not have; what does not answer is left to the run."""
    (protocol, endpoint), model = target.source(scenario.protocol), scenario.model
    names = target.models
    if names is None and answers:
        names = index_of(protocol, endpoint)
    # One of tritonctl's own keeps its index to itself.
    if model not in names if names else answers and is_unknown(protocol, endpoint, model):
        raise UsageError(
            f"the server has no model {model}",
            remedy=choices(model, names, "it has")
            if names
            else "name one that it serves: `tritonctl status` in its project lists them",
        )


def _refuse_streams(name: str, scenario: Scenario, config: Config) -> None:
    if scenario.kind == "tensors" and is_decoupled(config):
        raise ConfigurationError(
            f"loadtests.{name}.kind: tensors, but {scenario.model} streams, and Triton takes "
            "requests for a single answer only for models that do not",
            remedy="leave `kind` out, with prompts of text_input; `serving.unary: true` adds "
            f"{scenario.model}_unary, which answers once",
        )
