# SPDX-License-Identifier: Apache-2.0
"""`tritonctl check`: mistakes in any model repository, before a server loads it.

With --url also where a running server differs from the repository.
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
from tritonctl.errors import RepositoryError, UsageError, suggest

if TYPE_CHECKING:
    from tritonctl.checks.findings import Report
    from tritonctl.checks.live.rules import LiveRule
    from tritonctl.checks.repository import Target
    from tritonctl.checks.rule import Rule
    from tritonctl.protocol.channel import Endpoint

    AnyRule = Rule | LiveRule

PROJECT = "project"
_LIKE = 0.8  # of names, most of which have words in common
Format = Literal["text", "json", "sarif", "github"]


@options.expand_options
def command(
    *,
    repositories: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[REPOSITORY]...", help="folders of models", show_default="the project's"
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="how findings are printed")] = "text",
    select: Annotated[
        list[str] | None, typer.Option("--select", help="only these rules: TC101, or TC1 for all")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", help="skip these rules")] = None,
    machine: TargetOptions,
    fix: Annotated[bool, typer.Option("--fix", help="apply the safe fixes, then check")] = False,
    explain: Annotated[str | None, typer.Option(help="explain a rule")] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            help="HOST:PORT of a Triton's gRPC, or `project` for the project's own: compare what "
            "it serves with the files, and report what strangers can reach",
        ),
    ] = None,
    access: options.AccessOptions,
    project: options.ProjectOptions,
    voice: options.OutputOptions,
) -> None:
    """Find mistakes in model repositories; exit code 6 on an error."""
    from tritonctl.checks.findings import merged
    from tritonctl.checks.report.formats import FORMATS, explained, rule_record

    console = voice.console()
    if explain:
        asked = _chosen([explain], None)
        record = {"rules": [rule_record(rule) for rule in asked]}
        console.result(record, "\n".join(explained(rule) for rule in asked).removesuffix("\n"))
        return
    rules = _chosen(select, ignore)
    named = access.endpoint(url)
    loaded = None if repositories else project.load()
    folders = [loaded.repository] if loaded else repositories or []
    live, version = [], None
    if named:
        report, version = _live(folders, _endpoint(named, project), rules)
        live = [report]
    target = machine.target(loaded, version=version, here=url in (None, PROJECT))
    reports = [*(_report(folder, target, rules, fix) for folder in folders), *live]
    report = merged(reports)
    failure = _failure(report) if report.failed else None
    console.result(report.as_record(), FORMATS[output](report), failure)
    if failure:
        raise failure


def _failure(report: Report) -> RepositoryError:
    errors = [finding for finding in report.findings if finding.severity == "error"]
    some = "1 error" if len(errors) == 1 else f"{len(errors)} errors"
    return RepositoryError(
        f"{some}, the first at {errors[0].place}",
        remedy=f"`tritonctl check --explain {errors[0].rule}` explains it",
    )


def _report(folder: Path, target: Target, rules: Sequence[AnyRule], fix: bool) -> Report:
    from tritonctl.checks.autofix import apply_fixes
    from tritonctl.checks.checker import check_repository
    from tritonctl.checks.rule import Rule

    static = [rule for rule in rules if isinstance(rule, Rule)]
    with _readable(folder):
        report = check_repository(folder, target, rules=static)
        if fix and apply_fixes(report):
            report = check_repository(folder, target, rules=static)
    return report


def _live(
    folders: Sequence[Path], endpoint: Endpoint, rules: Sequence[AnyRule]
) -> tuple[Report, str | None]:
    """Where the server differs from the folders, and its version."""
    from tritonctl.checks.live.rules import LiveRule
    from tritonctl.checks.live.server import check_server, inspect_for, version_of

    chosen = [rule for rule in rules if isinstance(rule, LiveRule)]
    with _readable(*folders):
        seen = inspect_for(folders, endpoint)
        report = check_server(folders, seen, rules=chosen)
    return replace(report, models=0), version_of(seen)  # the models are counted as files


@contextmanager
def _readable(*folders: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = error.filename or ", ".join(map(str, folders))
        raise UsageError(
            f"{named} cannot be read: {error.strerror}",
            remedy="name a folder with a model in each of its folders",
        ) from error


def _endpoint(named: Endpoint, project: options.ProjectOptions) -> Endpoint:
    """The server named, with TLS and token from its state if it is the project's own."""
    from tritonctl.errors import ConfigurationError, ServerError
    from tritonctl.server.lifecycle import running_server

    try:
        own = running_server(project.load()).endpoint
    except (ConfigurationError, ServerError):
        if named.url == PROJECT or project.path is not None:
            raise
        return named
    return own if named.url in (PROJECT, own.url) and named.tls is None else named


def _nearest(asked: str, rules: Mapping[str, AnyRule]) -> str | None:
    """Of rules by id or by name: `missing-labels` is TC020, TC99 nearest to TC009."""
    by_name = {rule.name.upper(): rule.id for rule in rules.values()}
    named = suggest(asked, by_name, likeness=_LIKE)
    return by_name[named] if named else suggest(asked, rules)


def _chosen(select: list[str] | None, ignore: list[str] | None) -> list[AnyRule]:
    """The rules selected by prefixes of their ids. Raises UsageError for an unknown one."""
    from tritonctl.checks.live.rules import LIVE_RULES
    from tritonctl.checks.rules import RULES

    every: dict[str, AnyRule] = {**RULES, **LIVE_RULES}
    for asked in (*(select or ()), *(ignore or ())):
        if not any(name.startswith(asked.upper()) for name in every):
            nearest = _nearest(asked.upper(), every)
            raise UsageError(
                f"unknown rule {asked}",
                remedy=(f"did you mean `{nearest}`? " if nearest else "name one such as TC101; ")
                + "TC1 is a family; docs/reference/check-rules/README.md lists all",
            )
    wanted = tuple(name.upper() for name in select or ("TC",))
    unwanted = tuple(name.upper() for name in ignore or ())
    return [
        r for name, r in every.items() if name.startswith(wanted) and not name.startswith(unwanted)
    ]
