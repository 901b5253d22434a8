# SPDX-License-Identifier: Apache-2.0
"""A running server against the repositories that it should serve: `check_server`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from tritonctl.checks.checker import ANY, finding_of, shown
from tritonctl.checks.findings import Finding, Hit, Report
from tritonctl.checks.live.exposure import exposures
from tritonctl.checks.live.models import compare, of_no_repository
from tritonctl.checks.live.rules import LIVE_RULES, LiveRule
from tritonctl.checks.repository import Model, Repository, Target
from tritonctl.errors import UsageError
from tritonctl.protocol.channel import Endpoint
from tritonctl.protocol.inspection import inspect
from tritonctl.protocol.server_description import ServerDescription


def inspect_for(paths: Sequence[Path], endpoint: Endpoint) -> ServerDescription:
    """Ask a server what `check_server` needs to know. Raises ServerError, UsageError, OSError."""
    return inspect(endpoint, _models(paths))


def version_of(seen: ServerDescription) -> str | None:
    """The server's, for the rules about files; None where it says no version of Triton's."""
    try:
        return Target.named(seen.version or None).version
    except UsageError:
        return None


def check_server(
    paths: Sequence[Path], seen: ServerDescription, *, rules: Collection[LiveRule] | None = None
) -> Report:
    """Where a server differs from its repositories, and what it shows to strangers.

    Of a model in several repositories the first counts. Raises OSError when a folder cannot be
    read.
    """
    models = _models(paths)
    chosen = {rule.id for rule in (LIVE_RULES.values() if rules is None else rules)}
    findings = [finding for finding in _findings(models, seen) if finding.rule in chosen]
    files = (model.file for model in models.values())
    return Report(tuple(findings), len(models), {f.source.name: f.source for f in files if f})


def _models(paths: Sequence[Path]) -> dict[str, Model]:
    models: dict[str, Model] = {}
    for path in paths:
        for name, model in Repository.at(path, shown(path), ANY).models.items():
            models.setdefault(name, model)
    return models


def _findings(models: Mapping[str, Model], seen: ServerDescription) -> Iterator[Finding]:
    for name in sorted(models):
        for rule, hit in compare(models[name], seen):
            if finding := finding_of(rule, models[name], hit):
                yield finding
    for rule, hit in (*of_no_repository(models, seen), *exposures(seen)):
        yield _of_server(rule, hit, seen)


def _of_server(rule: LiveRule, hit: Hit, seen: ServerDescription) -> Finding:
    """Its place is the server itself, without a line."""
    severity = rule.severity
    if rule.on_loopback and not seen.beyond_loopback:
        severity = rule.on_loopback
    return Finding(
        path=f"grpc://{seen.url}",
        line=0,
        column=0,
        end=0,
        text="",
        rule=rule.id,
        severity=severity,
        message=hit.message,
        why=rule.why,
        fix=hit.fix,
    )
