# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share: groups of them, and the objects that the verbs get for them.

A verb names a group as the type of one parameter; `expand_options` puts the group's own options in
its place for Typer, which knows only functions with one parameter per option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from tritonctl.errors import TritonctlError, UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.protocol.api_key import ApiKey
    from tritonctl.protocol.channel import ClientTls, Endpoint

API_KEY_VARIABLE = "TRITONCTL_API_KEY_FILE"

ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        "-C",
        help="tritonctl.yaml or its folder",
        show_default="found upwards from here",
    ),
]
ModelsOption = Annotated[
    str | None, typer.Option("--models", help="these models alone: a,b", show_default="all")
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", help="HOST:PORT of another server's gRPC", show_default="the project's server"
    ),
]
MetricsUrlOption = Annotated[
    str | None,
    typer.Option(
        "--metrics-url", help="HOST:PORT or URL of that server's metrics", show_default=False
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on standard output")]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="never touch the network: use what is here")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no notes")]


@dataclass(frozen=True)
class ProjectOptions:
    """Which project a verb works on, and what it changes in it."""

    path: ProjectOption = None
    profile: Annotated[
        str | None,
        typer.Option("--env", help="a profile of tritonctl.yaml", show_default=False),
    ] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="override a field: server.grpc_port=0", show_default=False),
    ] = None

    def load(self, changes: Iterable[str] = ()) -> Project:
        """The project, with further `changes` like those of `--set`.

        Raises ConfigurationError, UsageError.
        """
        from tritonctl.project.file import load_project

        overrides = [*(self.overrides or ()), *changes]
        return load_project(self.path, profile=self.profile, overrides=overrides)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """What fails here has a remedy whose commands are for the same project."""
        try:
            yield
        except TritonctlError as error:
            from tritonctl.cli.remedies import repeated

            error.remedy = repeated(error.remedy, self.path, self.profile, self.overrides)
            raise


@dataclass(frozen=True)
class OutputOptions:
    """How a verb prints: the options that every verb has."""

    as_json: JsonOption = False
    quiet: QuietOption = False

    def console(self) -> Console:
        """The console that a verb prints to."""
        from tritonctl.cli.console.voice import Console

        return Console(as_json=self.as_json, quiet=self.quiet)


@dataclass(frozen=True)
class AccessOptions:
    """TLS files and API key for a server.

    Only for a server that is named by its address: how to reach the project's own is in its state.
    """

    ca: Annotated[
        Path | None,
        typer.Option("--ca", help="PEM of the authority to trust: the server speaks TLS"),
    ] = None
    certificate: Annotated[
        Path | None,
        typer.Option("--certificate", help="PEM of the client's certificate, for mutual TLS"),
    ] = None
    key: Annotated[Path | None, typer.Option("--key", help="PEM of the key of --certificate")] = (
        None
    )
    server_name: Annotated[
        str | None,
        typer.Option(
            "--server-name",
            help="name in the server's certificate",
            show_default="the host of its address; of a cluster's gateway, its Service",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            help="file whose first line is the API key for a gateway",
            show_default=API_KEY_VARIABLE,
        ),
    ] = None
    api_key_in_clear: Annotated[
        bool,
        typer.Option(
            "--api-key-in-clear", help="send the API key to another machine even without TLS"
        ),
    ] = False

    def endpoint(self, url: str | None, *, name: str | None = None) -> Endpoint | None:
        """The server at `url` with what it asks for; None without `url`. Raises UsageError.

        name: in its certificate, where no option says it and it is not the host of `url`.
        TRITONCTL_API_KEY_FILE is only for servers named by their address: the project's own gets no
        key.
        """
        if url is None:
            if self != AccessOptions():
                raise UsageError(
                    "--ca, --certificate, --key and --api-key-file need the address of a server",
                    remedy="leave them out: the project's own server is reached by `server.tls`",
                )
            return None
        from tritonctl.protocol.channel import Endpoint

        return Endpoint(url, self._tls(name), api_key=self._api_key())

    def _tls(self, name: str | None) -> ClientTls | None:
        if not (self.ca or self.certificate or self.key or self.server_name):
            return None
        if self.ca is None or (self.certificate is None) != (self.key is None):
            raise UsageError(
                "--certificate and --key go together, with --ca, as --server-name does",
                remedy="name --ca, and the pair where the server asks for a certificate",
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
                    "--api-key-in-clear is given without an API key",
                    remedy=f"name its file: --api-key-file FILE, or {API_KEY_VARIABLE}",
                )
            return None
        from tritonctl.protocol.api_key import ApiKey

        return ApiKey(file, self.api_key_in_clear)


def listed(values: Iterable[str] | None) -> list[str]:
    """The names in the values of an option such as `a,b`, which may be repeated."""
    return [name for value in values or () for each in value.split(",") if (name := each.strip())]


def chosen(project: Project, models: str | None) -> Project:
    """The project with the models that `--models` names alone. Raises UsageError."""
    if models is None:
        return project
    from tritonctl.repository import choice

    if not (names := listed([models])):
        raise UsageError("--models names no model", remedy="list them: --models a,b")
    return choice.chosen(project, names)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """The verb as Typer takes it: one parameter per option, in the order of `--help`."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        hint = hints[name]
        if _is_group(hint):
            groups[name] = hint
            parameters += _options(hint)
        else:
            parameters.append(parameter.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))

    @wraps(command)
    def expanded(**values: Any) -> None:
        made = {name: _collect(group, values) for name, group in groups.items()}
        project = next((each for each in made.values() if isinstance(each, ProjectOptions)), None)
        with project.repeated() if project else nullcontext():
            command(**values, **made)

    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in parameters}
    return expanded


def _is_group(hint: Any) -> bool:
    return is_dataclass(hint)


@cache
def _options(group: type) -> tuple[Parameter, ...]:
    """The parameters of a group and of the groups in it."""
    hints = get_type_hints(group, include_extras=True)
    parameters: list[Parameter] = []
    for field in fields(group):
        hint = hints[field.name]
        if _is_group(hint):
            parameters += _options(hint)
        else:
            kind = Parameter.KEYWORD_ONLY
            parameters.append(Parameter(field.name, kind, default=field.default, annotation=hint))
    return tuple(parameters)


def _collect(group: Any, values: dict[str, Any]) -> Any:
    """The group made of its options, which leave `values`."""
    hints = get_type_hints(group)
    return group(
        **{
            field.name: _collect(hints[field.name], values)
            if _is_group(hints[field.name])
            else values.pop(field.name)
            for field in fields(group)
        }
    )
