# SPDX-License-Identifier: Apache-2.0
"""Option groups that several verbs share.

A verb uses a group as the type of one parameter. Typer supports only functions with one parameter
per option, so `expand_options` replaces that parameter by the group's options. The group's `panel`
is where `--help` lists them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from tritonctl.cli.vocabulary import CONNECTION, OUTPUT, PANELS, PROJECT
from tritonctl.errors import TritonctlError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console
    from tritonctl.project.schema import Project
    from tritonctl.protocol.api_key import ApiKey
    from tritonctl.protocol.channel import ClientTls, Endpoint

API_KEY_VARIABLE = "TRITONCTL_API_KEY_FILE"
NOTHING_TO_BUILD = "nothing to build: `models:` is empty; `tritonctl up` serves handwritten models"

ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        "-C",
        metavar="PATH",
        help="tritonctl.yaml or its folder",
        show_default="here or above",
        rich_help_panel=PROJECT,
    ),
]
ModelsOption = Annotated[
    str | None,
    typer.Option("--models", metavar="MODEL", help="only these models: a,b", show_default="all"),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="HOST:PORT",
        help="gRPC address of the server",
        show_default="the project's",
        rich_help_panel=CONNECTION,
    ),
]
MetricsUrlOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-url",
        metavar="URL",
        help="metrics of the server",
        show_default="the project's or the cluster's",
        rich_help_panel=CONNECTION,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="JSON on standard output", rich_help_panel=OUTPUT)
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="do not use the network, only local files")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="no progress, no notes", rich_help_panel=OUTPUT)
]


@dataclass(frozen=True)
class ProjectOptions:
    """The project of a verb and its overrides."""

    panel: ClassVar[str] = PROJECT

    path: ProjectOption = None
    profile: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="PROFILE", help="a profile of tritonctl.yaml", show_default=False
        ),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="override a field: server.grpc_port=0; repeatable",
            show_default=False,
        ),
    ] = None

    def load(self, changes: Iterable[str] = ()) -> Project:
        """Load the project with further `changes` in the form of `--set`.

        Raises ConfigurationError, UsageError.
        """
        from tritonctl.project.file import load_project

        overrides = [*(self.overrides or ()), *changes]
        return load_project(self.path, profile=self.profile, overrides=overrides)

    @contextmanager
    def repeating_options(self) -> Iterator[None]:
        """Add the project's options to the commands in the remedies of errors."""
        try:
            yield
        except TritonctlError as error:
            from tritonctl.cli.remedies import with_project_options

            error.remedy = with_project_options(
                error.remedy, self.path, self.profile, self.overrides
            )
            raise


@dataclass(frozen=True)
class OutputOptions:
    """The output options that every verb has."""

    panel: ClassVar[str] = OUTPUT

    as_json: JsonOption = False
    quiet: QuietOption = False

    def console(self) -> Console:
        """Return the console for the verb's output."""
        from tritonctl.cli.console.output import Console

        return Console(as_json=self.as_json, quiet=self.quiet)


@dataclass(frozen=True)
class AccessOptions:
    """TLS files and API key for a server.

    They apply only to a server named by its address; the project's state describes its own server.
    """

    panel: ClassVar[str] = CONNECTION

    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="PEM of the CA to trust; enables TLS"),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--certificate", metavar="FILE", help="PEM of the client's certificate, for mutual TLS"
        ),
    ] = None
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="PEM of the key of --certificate")
    ] = None
    server_name: Annotated[
        str | None,
        typer.Option(
            "--server-name",
            metavar="NAME",
            help="name in the server's certificate",
            show_default="the host of --url; of a cluster, its Service",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            metavar="FILE",
            help="file whose first line is a gateway's API key",
            show_default=f"${API_KEY_VARIABLE}",
        ),
    ] = None
    api_key_in_clear: Annotated[
        bool,
        typer.Option("--api-key-in-clear", help="send the key to other machines even without TLS"),
    ] = False

    def endpoint(self, url: str | None, *, name: str | None = None) -> Endpoint | None:
        """Return the server at `url` with TLS and API key; None without `url`. Raises UsageError.

        name: default for --server-name, if it is not the host of `url`. TRITONCTL_API_KEY_FILE
        applies only to servers named by their address: the project's server gets no key.
        """
        if url is None:
            if self != AccessOptions():
                raise UsageError(
                    "--ca, --certificate, --key and --api-key-file need the address of a server",
                    remedy="drop them: `server.tls` configures access to the project's server",
                )
            return None
        from tritonctl.protocol.channel import Endpoint

        return Endpoint(url, self._tls(name), api_key=self._api_key())

    def _tls(self, name: str | None) -> ClientTls | None:
        if not (self.ca or self.certificate or self.key or self.server_name):
            return None
        if self.ca is None or (self.certificate is None) != (self.key is None):
            raise UsageError(
                "--server-name requires --ca; --certificate requires --key and --ca",
                remedy="add --ca, and --certificate with --key if the server requires them",
            )
        from tritonctl.protocol.channel import ClientTls

        return ClientTls(self.ca, self.certificate, self.key, self.server_name or name)

    def _api_key(self) -> ApiKey | None:
        file = self.api_key_file
        if file is None and (variable := os.environ.get(API_KEY_VARIABLE)):
            file = Path(variable)
        if file is None:
            if self.api_key_in_clear:
                raise UsageError(
                    "--api-key-in-clear requires an API key",
                    remedy=f"name its file: --api-key-file FILE, or {API_KEY_VARIABLE}",
                )
            return None
        from tritonctl.protocol.api_key import ApiKey

        return ApiKey(file, self.api_key_in_clear)


def split_names(values: Iterable[str] | None) -> list[str]:
    """Return the names in the values of a repeatable option such as `a,b`."""
    return [name for value in values or () for each in value.split(",") if (name := each.strip())]


def select_models(project: Project, models: str | None) -> Project:
    """Return the project with only the models of `--models`. Raises UsageError."""
    if models is None:
        return project
    from tritonctl.repository import choice

    if not (names := split_names([models])):
        raise UsageError("--models names no model", remedy="list them: --models a,b")
    return choice.select_models(project, names)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Convert a verb for Typer: one parameter per option, in the order of `--help`.

    The verb's own options come first, then those of each panel.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        if _is_group(hint):
            groups[name] = hint
            parameters += _options(hint)
        else:
            hint = _with_metavar(name, hint)
            parameters.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))
    parameters.sort(key=_panel_order)

    @wraps(command)
    def expanded(**values: Any) -> None:
        collected = {name: _collect(group, values) for name, group in groups.items()}
        project = next(
            (each for each in collected.values() if isinstance(each, ProjectOptions)), None
        )
        with project.repeating_options() if project else nullcontext():
            command(**values, **collected)

    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


def _is_group(hint: Any) -> bool:
    return is_dataclass(hint)


def _with_metavar(name: str, hint: Any) -> Any:
    """Return an argument's annotation with its name as metavar, `MODEL`, unless it has one."""
    kind, info = get_args(hint)
    if not isinstance(info, ArgumentInfo) or info.metavar is not None:
        return hint
    info = copy(info)
    info.metavar = name.upper()
    return Annotated[kind, info]


def _panel_order(parameter: Parameter) -> int:
    (info,) = get_args(parameter.annotation)[1:]
    return PANELS.index(info.rich_help_panel) + 1 if info.rich_help_panel else 0


def _in_panel(hint: Any, panel: str | None) -> Any:
    """Return an option's annotation with the panel of its group, unless it has one."""
    kind, info = get_args(hint)
    if panel is None or info.rich_help_panel is not None:
        return hint
    info = copy(info)
    info.rich_help_panel = panel
    return Annotated[kind, info]


@cache
def _options(group: type) -> tuple[Parameter, ...]:
    """Return the parameters of a group and of its nested groups."""
    hints = get_type_hints(group, include_extras=True)
    parameters: list[Parameter] = []
    for field in fields(group):
        hint = hints[field.name]
        if _is_group(hint):
            parameters += _options(hint)
        else:
            hint = _in_panel(hint, getattr(group, "panel", None))
            kind = Parameter.KEYWORD_ONLY
            parameters.append(Parameter(field.name, kind, default=field.default, annotation=hint))
    return tuple(parameters)


def _collect(group: Any, values: dict[str, Any]) -> Any:
    """Create the group from its options, and remove these from `values`."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _collect(hints[field.name], values)
            if _is_group(hints[field.name])
            else values.pop(field.name)
            for field in fields(group)
        }
    )
