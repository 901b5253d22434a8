# SPDX-License-Identifier: Apache-2.0
"""Compare a running server with the repositories that it should serve: `check_server`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tritonctl.checks.checker import ANY_TARGET, make_finding, path_for_display
from tritonctl.checks.findings import CheckFinding, CheckReport, Hit
from tritonctl.checks.live.exposure import exposures
from tritonctl.checks.live.models import compare_model, unlisted_models
from tritonctl.checks.live.rules import LIVE_RULES, LiveRule
from tritonctl.checks.repository import CheckTarget, Model, Repository
from tritonctl.errors import UsageError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.inspection import inspect
from tritonctl.protocol.server_description import ServerDescription


def inspect_server(paths: Sequence[Path], endpoint: Endpoint) -> ServerDescription:
    """Query a server for `check_server`. Raises ServerError, UsageError, OSError."""
    return inspect(endpoint, _models(paths))


def server_version(seen: ServerDescription) -> str | None:
    """Return the server's version for the rules about files; None if it is not a Triton version."""
    try:
        return CheckTarget.from_name(seen.version or None).version
    except UsageError:
        return None


def check_server(
    paths: Sequence[Path], server: ServerDescription, *, rules: Collection[LiveRule] | None = None
) -> CheckReport:
    """Report where a server differs from its repositories, and its open services.

    If several repositories have a model, the first counts. Raises OSError if a folder cannot be
    read.
    """
    models = _models(paths)
    rule_ids = {rule.id for rule in (LIVE_RULES.values() if rules is None else rules)}
    findings = [finding for finding in _findings(models, server) if finding.rule in rule_ids]
    files = (model.file for model in models.values())
    return CheckReport(tuple(findings), len(models), {f.source.name: f.source for f in files if f})


def _models(paths: Sequence[Path]) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for path in paths:
        for name, model in Repository.read(path, path_for_display(path), ANY_TARGET).models.items():
            models.setdefault(name, model)
    return models


def _findings(models: Mapping[str, Model], server: ServerDescription) -> Iterator[CheckFinding]:
    for name in sorted(models):
        for rule, hit in compare_model(models[name], server):
            if finding := make_finding(rule, models[name], hit):
                yield finding
    for rule, hit in (*unlisted_models(models, server), *exposures(server)):
        yield _server_finding(rule, hit, server)


def _server_finding(rule: LiveRule, hit: Hit, seen: ServerDescription) -> CheckFinding:
    """Return a finding about the server itself, without a line."""
    severity = rule.severity
    if rule.on_loopback and not seen.beyond_loopback:
        severity = rule.on_loopback
    return CheckFinding(
        path=f"grpc://{seen.url}",
        line=0,
        column=0,
        end=0,
        text="",
        rule=rule.id,
        severity=severity,
        message=hit.message,
        reason=rule.reason,
        fix=hit.fix,
    )
