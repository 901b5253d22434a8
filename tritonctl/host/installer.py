# SPDX-License-Identifier: Apache-2.0
"""Fill environments with uv, under the settings that the user gave pip.

uv reads no pip configuration, so pip's settings become uv's environment variables: addresses of
indexes may hold passwords and must not appear on a command line.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uv

from tritonctl.host.process import without_python_variables
from tritonctl.host.torch_index import without_credentials

_SECONDS = 30.0
_TRUE = {"1", "true", "True", "yes", "on"}
# pip's setting, uv's variable, separator of several values (None: a single value).
_TRANSLATIONS: tuple[tuple[str, str, str | None], ...] = (
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
# Older names of uv's variables, which take precedence if set.
_OLD_NAMES = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
# The last two replace the public index.
_INDEX_VARIABLES = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@dataclass(frozen=True)
class Installer:
    """Commands of uv and the variables to run them with."""

    program: str
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables
    flags: tuple[str, ...] = ()  # options of `uv pip install`
    no_index: bool = False  # installs from local wheels only

    def environment(self, index: str | None = None, *, verified: bool = False) -> dict[str, str]:
        """The environment variables of a command.

        index: use this index and no other. verified: the command installs a lock.
        """
        variables = dict(self.settings)
        if verified:
            # With hashes, uv refuses a constraint that is no version; a lock has every version.
            variables["UV_CONSTRAINT"] = ""
        if index:
            other_sources = ("UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX_URL", "UV_FIND_LINKS")
            variables |= dict.fromkeys(other_sources, "") | {"UV_DEFAULT_INDEX": index}
        return without_python_variables() | variables

    def sources(self) -> list[str]:
        """Return the folders and indexes that packages come from, without credentials."""
        variables = self.environment()
        names = () if self.no_index else _INDEX_VARIABLES
        indexes = [variables.get(name, "") for name in names]
        folders = variables.get("UV_FIND_LINKS", "").split(",")
        public = [] if self.no_index or any(indexes[-2:]) else ["the public index"]
        entries = [*folders, *" ".join(indexes).split(), *public]
        return [without_credentials(entry) for entry in entries if entry]

    def make(self, python: Path, folder: Path) -> list[str | Path]:
        """Return the command that creates an empty environment."""
        flags = ("--quiet", "--no-project", "--allow-existing")
        return [self.program, "venv", *flags, "--python", python, folder]

    def install(self, python: Path, arguments: Sequence[str]) -> list[str | Path]:
        """The command that installs into the environment of an interpreter.

        arguments: those of `pip install`.
        """
        return [self.program, "pip", "install", "--python", python, *self.flags, *arguments]


def installer(python: Path) -> Installer:
    """uv with pip's settings, as `python -m pip config list` and PIP_* variables give them."""
    pip = pip_settings(python)
    no_index = pip.get("no-index") in _TRUE
    flags = ("--no-index",) if no_index else ()
    return Installer(uv.find_uv_bin(), _uv_settings(pip), flags, no_index)


def _uv_settings(pip: Mapping[str, str]) -> dict[str, str]:
    """uv's variables for pip's settings; variables that the user set win."""
    settings: dict[str, str] = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_PROGRESS": "1"}
    if not pip.get("cert"):
        settings["UV_SYSTEM_CERTS"] = "1"  # as pip does: trust what the system trusts
    translated = _translate(pip).items()
    settings |= {
        name: text for name, text in translated if not os.environ.get(_OLD_NAMES.get(name, ""))
    }
    if _has_proxy():
        settings.pop("ALL_PROXY", None)
    return {name: value for name, value in settings.items() if name not in os.environ}


def _translate(pip: Mapping[str, str]) -> dict[str, str]:
    """Return pip's settings under the names of uv's variables."""
    settings: dict[str, str] = {}
    for name, variable, separator in _TRANSLATIONS:
        if words := pip.get(name, "").split():
            settings.setdefault(variable, pip[name] if separator is None else separator.join(words))
    return settings


def _has_proxy() -> bool:
    return any(name.lower().endswith("_proxy") for name in os.environ)


def pip_settings(python: Path) -> dict[str, str]:
    """Return pip's settings from its files and PIP_* variables, by option name."""
    settings: dict[str, str] = {}
    lines = [line.partition("=") for line in _pip_config_list(python).splitlines()]
    # The last one wins, as in pip: [global], then [install], then the environment.
    for section in ("global.", "install.", ":env:."):
        for name, _, value in lines:
            if name.startswith(section):
                settings[name.removeprefix(section)] = _literal(value)
    for name, value in os.environ.items():  # also without pip
        if name.startswith("PIP_") and value:
            settings[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    return settings


def _pip_config_list(python: Path) -> str:
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
