# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share, and what they all begin with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.console.voice import Console
    from tritonctl.project.schema import Project
    from tritonctl.protocol.api_key import ApiKey
    from tritonctl.protocol.channel import ClientTls, Endpoint

ProjectOption = Annotated[
    Path | None,
    typer.Option(
        "--project",
        "-C",
        help="tritonctl.yaml or its folder [default: found upwards from here]",
        show_default=False,
    ),
]
ProfileOption = Annotated[
    str | None, typer.Option("--profile", help="a profile of tritonctl.yaml", show_default=False)
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="override a field: server.grpc_port=0", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="one JSON object on standard output")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no notes")]
# For a server that is named by its address; the project's own is known from its state.
CaOption = Annotated[
    Path | None,
    typer.Option("--ca", help="PEM: the server named speaks TLS, trust it by this authority"),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option("--certificate", help="PEM: what to show the server named, mutual TLS"),
]
KeyOption = Annotated[Path | None, typer.Option("--key", help="PEM: of --certificate")]
API_KEY_VARIABLE = "TRITONCTL_API_KEY_FILE"
ApiKeyOption = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        help=f"its first line is the key that a gateway asks for [default: {API_KEY_VARIABLE}]",
        show_default=False,
    ),
]
ApiKeyInClearOption = Annotated[
    bool, typer.Option("--api-key-in-clear", help="send it without TLS to another machine, too")
]


def named_server(
    url: str | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    api_key_file: Path | None,
    api_key_in_clear: bool,
) -> Endpoint | None:
    """The server at `url` and what one needs there; None without. Raises UsageError.

    TRITONCTL_API_KEY_FILE is for whatever is named by its address, so the project's own server
    never gets a key.
    """
    if url is None:
        if ca or certificate or key or api_key_file or api_key_in_clear:
            raise UsageError(
                "--ca, --certificate, --key and --api-key-file are for a server that is named by "
                "its address",
                remedy="leave them out: the project's own server is reached by `server.tls`",
            )
        return None
    from tritonctl.protocol.channel import Endpoint

    tls = _client_tls(ca, certificate, key)
    return Endpoint(url, tls, api_key=_api_key(api_key_file, api_key_in_clear))


def _client_tls(ca: Path | None, certificate: Path | None, key: Path | None) -> ClientTls | None:
    if not (ca or certificate or key):
        return None
    if ca is None or (certificate is None) != (key is None):
        raise UsageError(
            "--certificate and --key go together, with --ca",
            remedy="name --ca, and the other two where the server asks for a certificate",
        )
    from tritonctl.protocol.channel import ClientTls

    return ClientTls(ca, certificate, key)


def _api_key(file: Path | None, in_clear: bool) -> ApiKey | None:
    if file is None and (named := os.environ.get(API_KEY_VARIABLE)):
        file = Path(named)
    if file is None:
        if in_clear:
            raise UsageError(
                "--api-key-in-clear, but there is no API key",
                remedy=f"name its file: --api-key-file FILE, or {API_KEY_VARIABLE}",
            )
        return None
    from tritonctl.protocol.api_key import ApiKey

    return ApiKey(file, in_clear)


def console(as_json: bool, quiet: bool) -> Console:
    """The console that a verb speaks through."""
    from tritonctl.console.voice import Console

    return Console(as_json=as_json, quiet=quiet)


def open_project(path: Path | None, profile: str | None, overrides: list[str] | None) -> Project:
    """The project that the shared options name. Raises ConfigurationError."""
    from tritonctl.project.file import load_project

    return load_project(path, profile=profile, overrides=overrides or ())
