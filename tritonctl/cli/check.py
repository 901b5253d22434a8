# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check`: find mistakes in any model repository before a server loads it.

With --url also find differences between a running server and the repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tritonctl.cli import options
from tritonctl.cli.target_options import TargetOptions
from tritonctl.cli.vocabulary import CONNECTION
from tritonctl.errors import RepositoryError, UsageError, suggest

if TYPE_CHECKING:
    from tritonctl.checks.findings import CheckReport
    from tritonctl.checks.live.rules import LiveRule
    from tritonctl.checks.repository import CheckTarget
    from tritonctl.checks.rule import Rule
    from tritonctl.protocol.channel import Endpoint

    AnyRule = Rule | LiveRule

PROJECT = "project"
_NAME_LIKENESS = 0.8  # required similarity: most names share words
_MAX_FIX_ROUNDS = 5
Format = Literal["text", "json", "sarif", "github"]


@options.expand_options
def command(
    *,
    repositories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="REPOSITORY", help="folders of models", show_default="the project's"
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="output format")] = "text",
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="RULE", help="only these rules: TC101, or TC1 for all"),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="RULE", help="skip these rules")
    ] = None,
    machine: TargetOptions,
    fix: Annotated[bool, typer.Option("--fix", help="apply the safe fixes, then check")] = False,
    explain: Annotated[str | None, typer.Option(metavar="RULE", help="explain a rule")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="HOST:PORT",
            help="compare this server with the files; `project`: the project's server",
            rich_help_panel=CONNECTION,
        ),
    ] = None,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    output_options: options.OutputOptions,
) -> None:
    """Find mistakes in model repositories; exit code 6 on an error."""
    from tritonctl.checks.findings import merge_reports
    from tritonctl.checks.report.formats import FORMATS, explain_rule, rule_record

    console = output_options.console()
    if explain:
        explained_rules = _selected_rules([explain], None)
        record = {"rules": [rule_record(rule) for rule in explained_rules]}
        console.result(
            record, "\n".join(explain_rule(rule) for rule in explained_rules).removesuffix("\n")
        )
        return
    rules = _selected_rules(select, ignore)
    named_endpoint = access.endpoint(url)
    loaded = None if repositories else project.load()
    folders = [loaded.repository] if loaded else repositories or []
    live, version = [], None
    if named_endpoint:
        report, version = _live(folders, _endpoint(named_endpoint, project), rules)
        live = [report]
    target = machine.target(loaded, version=version, is_local=url in (None, PROJECT))
    reports = [*(_report(folder, target, rules, fix) for folder in folders), *live]
    report = merge_reports(reports)
    failure = _failure(report) if report.failed else None
    console.result(report.as_record(), FORMATS[output](report), failure)
    if failure:
        raise failure


def _failure(report: CheckReport) -> RepositoryError:
    errors = [finding for finding in report.findings if finding.severity == "error"]
    count = report.count("error")
    count_text = "1 error" if count == 1 else f"{count:,} errors"
    return RepositoryError(
        f"{count_text}, the first at {errors[0].place}",
        remedy=f"`tritonctl check --explain {errors[0].rule}` explains it",
    )


def _report(folder: Path, target: CheckTarget, rules: Sequence[AnyRule], fix: bool) -> CheckReport:
    from tritonctl.checks.autofix import apply_fixes
    from tritonctl.checks.checker import check_repository
    from tritonctl.checks.rule import Rule

    static = [rule for rule in rules if isinstance(rule, Rule)]
    with _reporting_unreadable(folder):
        report = check_repository(folder, target, rules=static)
        # A field that gets its right name shows the mistakes inside it.
        for _ in range(_MAX_FIX_ROUNDS if fix else 0):
            if not apply_fixes(report):
                break
            report = check_repository(folder, target, rules=static)
    return report


def _live(
    folders: Sequence[Path], endpoint: Endpoint, rules: Sequence[AnyRule]
) -> tuple[CheckReport, str | None]:
    """Return the differences between the server and the folders, and the server's version."""
    from tritonctl.checks.live.rules import LiveRule
    from tritonctl.checks.live.server import check_server, inspect_server, server_version

    chosen = [rule for rule in rules if isinstance(rule, LiveRule)]
    with _reporting_unreadable(*folders):
        seen = inspect_server(folders, endpoint)
        report = check_server(folders, seen, rules=chosen)
    return replace(report, models=0), server_version(seen)  # the models are counted as files


@contextmanager
def _reporting_unreadable(*folders: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = error.filename or ", ".join(map(str, folders))
        raise UsageError(
            f"{path} cannot be read: {error.strerror}",
            remedy="name a folder with a model in each of its folders",
        ) from error


def _endpoint(named_endpoint: Endpoint, project: options.ProjectOptions) -> Endpoint:
    """Return the named server, with TLS and token of its state if it is the project's."""
    from tritonctl.errors import ConfigurationError, ServerError
    from tritonctl.runtimes.lifecycle import running_server

    try:
        project_endpoint = running_server(project.load()).endpoint
    except (ConfigurationError, ServerError):
        if named_endpoint.url == PROJECT or project.path is not None:
            raise
        return named_endpoint
    return (
        project_endpoint
        if named_endpoint.url in (PROJECT, project_endpoint.url) and named_endpoint.tls is None
        else named_endpoint
    )


def _nearest(requested: str, rules: Mapping[str, AnyRule]) -> str | None:
    """Return the id of the nearest rule by name or id: TC020 for `missing-labels`."""
    by_name = {rule.name.upper(): rule.id for rule in rules.values()}
    nearest_name = suggest(requested, by_name, cutoff=_NAME_LIKENESS)
    return by_name[nearest_name] if nearest_name else suggest(requested, rules)


def _selected_rules(select: list[str] | None, ignore: list[str] | None) -> list[AnyRule]:
    """Return the rules selected by id prefixes. Raises UsageError for an unknown prefix."""
    from tritonctl.checks.live.rules import LIVE_RULES
    from tritonctl.checks.rules import RULES

    every: dict[str, AnyRule] = {**RULES, **LIVE_RULES}
    for prefix in (*(select or ()), *(ignore or ())):
        if not any(name.startswith(prefix.upper()) for name in every):
            nearest = _nearest(prefix.upper(), every)
            raise UsageError(
                f"unknown rule {prefix}",
                remedy=(f"did you mean `{nearest}`? " if nearest else "name one such as TC101; ")
                + "TC1 is a family; docs/reference/check-rules/README.md lists all",
            )
    selected_prefixes = tuple(name.upper() for name in select or ("TC",))
    ignored_prefixes = tuple(name.upper() for name in ignore or ())
    return [
        r
        for name, r in every.items()
        if name.startswith(selected_prefixes) and not name.startswith(ignored_prefixes)
    ]
