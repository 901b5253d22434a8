# SPDX-License-Identifier: Apache-2.0
"""What fills an environment: uv where it is installed, which is much faster, else pip.

Both install the same: uv is told pip's settings and takes the best version of all indexes, as pip
does. Settings travel by environment variables, because addresses of indexes may hold passwords.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.host.process import without_python_variables

VARIABLE = "TRITONCTL_INSTALLER"
_SECONDS = 30.0
_TRUE = {"1", "true", "True", "yes", "on"}
# Where pip and uv look unless they are told otherwise.
_PUBLIC = "https://pypi.org/simple"
# pip's setting, uv's variable, what separates several values (None: there is one).
_TRANSLATED: tuple[tuple[str, str, str | None], ...] = (
    ("index-url", "UV_DEFAULT_INDEX", None),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("constraint", "UV_CONSTRAINT", " "),
    ("trusted-host", "UV_INSECURE_HOST", " "),
    ("keyring-provider", "UV_KEYRING_PROVIDER", None),
    ("cert", "SSL_CERT_FILE", None),
    ("client-cert", "SSL_CLIENT_CERT", None),
    ("proxy", "ALL_PROXY", None),
    ("timeout", "UV_HTTP_TIMEOUT", None),
    ("default-timeout", "UV_HTTP_TIMEOUT", None),
)
# Older names of uv's own variables: who sets one means it.
_ALSO = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}


@dataclass(frozen=True)
class Sources:
    """Where packages come from: addresses of indexes, folders of wheels, and how to get there.

    proxy and certificates are None where the system's own settings hold.
    """

    indexes: tuple[str, ...]
    folders: tuple[Path, ...] = ()
    proxy: str | None = None
    certificates: str | None = None
    no_index: bool = False


@dataclass(frozen=True)
class Installer:
    """pip of the environment, or the program uv; `settings` are variables for it."""

    uv: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return "uv" if self.uv else "pip"

    def environment(self, index: str | None = None) -> dict[str, str]:
        """The variables of a command; `index`: the only index that it asks."""
        ours = dict(self.settings)
        if index:
            only = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS")
            ours |= dict.fromkeys(only, "") | {"UV_DEFAULT_INDEX": index, "PIP_INDEX_URL": index}
            ours |= {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
        return without_python_variables() | ours

    def make(self, python: Path, folder: Path) -> list[str | Path]:
        """The command that makes an empty environment."""
        if self.uv:
            flags = ("--quiet", "--no-project", "--allow-existing")
            return [self.uv, "venv", *flags, "--python", python, folder]
        return [python, "-m", "venv", folder]

    def install(self, python: Path, arguments: Sequence[str]) -> list[str | Path]:
        """The command that installs into the environment of an interpreter."""
        if self.uv:
            return [self.uv, "pip", "install", "--python", python, *self.flags, *arguments]
        pip = (python, "-m", "pip", "--disable-pip-version-check", "--no-input")
        return [*pip, "install", *arguments]


def installer(python: Path) -> Installer:
    """The one to use here; `python` is asked for pip's settings. Raises ConfigurationError."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in {"", "pip", "uv"}:
        raise ConfigurationError(
            f"{VARIABLE} is `{chosen}`; expected pip or uv",
            remedy=f"correct it, or unset {VARIABLE}",
        )
    uv = None if chosen == "pip" else shutil.which("uv")
    if chosen == "uv" and uv is None:
        raise ConfigurationError(
            f"{VARIABLE} is uv, which is not on PATH",
            remedy=f"install it (`pip install uv`), or unset {VARIABLE}",
        )
    if uv is None:
        return Installer()
    pip = pip_settings(python)
    flags = ("--no-index",) if pip.get("no-index") in _TRUE else ()
    return Installer(uv, _for_uv(pip), flags)


def _for_uv(pip: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for what pip is told, where uv is not told itself."""
    settings: dict[str, str] = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_PROGRESS": "1"}
    told = _translated(pip).items()
    settings |= {name: text for name, text in told if not os.environ.get(_ALSO.get(name, ""))}
    if _has_proxy():
        settings.pop("ALL_PROXY", None)
    return {name: value for name, value in settings.items() if name not in os.environ}


def _translated(pip: Mapping[str, str]) -> dict[str, str]:
    """pip's settings by the names of uv's variables."""
    settings: dict[str, str] = {}
    for name, variable, separator in _TRANSLATED:
        if words := pip.get(name, "").split():
            settings.setdefault(variable, pip[name] if separator is None else separator.join(words))
    return settings


def _has_proxy() -> bool:
    return any(name.lower().endswith("_proxy") for name in os.environ)


def sources(python: Path, tool: Installer) -> Sources:
    """Where that installer looks for packages; `python` is asked for pip's settings."""
    pip = pip_settings(python)
    told = {**_for_uv(pip), **os.environ} if tool.uv else _translated(pip)
    first = told.get("UV_DEFAULT_INDEX") or told.get("UV_INDEX_URL") or _PUBLIC
    more = told.get("UV_INDEX") or told.get("UV_EXTRA_INDEX_URL") or ""
    folders = (Path(one) for one in told.get("UV_FIND_LINKS", "").split(",") if one)
    return Sources(
        indexes=tuple(f"{one.rstrip('/')}/" for one in (first, *more.split())),
        folders=tuple(folders),
        proxy=None if _has_proxy() else told.get("ALL_PROXY"),
        certificates=told.get("SSL_CERT_FILE"),
        no_index=pip.get("no-index") in _TRUE,
    )


def asks_no_index(python: Path) -> bool:
    """Whether pip is told to install from local wheels alone."""
    return pip_settings(python).get("no-index") in _TRUE


def pip_settings(python: Path) -> dict[str, str]:
    """What pip's files and PIP_* variables say, by the names of its options."""
    found: dict[str, str] = {}
    lines = [line.partition("=") for line in _listed(python).splitlines()]
    # The later wins, as in pip: its section [install] over [global], the environment over both.
    for section in ("global.", "install.", ":env:."):
        for name, _, value in lines:
            if name.startswith(section):
                found[name.removeprefix(section)] = _literal(value)
    for name, value in os.environ.items():  # also where no pip is installed
        if name.startswith("PIP_") and value:
            found[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return found


def _listed(python: Path) -> str:
    command = [str(python), "-m", "pip", "config", "list"]
    try:
        done = subprocess.run(
            command,
            env=without_python_variables(),
            capture_output=True,
            encoding="utf-8",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _literal(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (SyntaxError, ValueError):
        return value
