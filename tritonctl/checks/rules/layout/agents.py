# SPDX-License-Identifier: Apache-2.0
"""TC034 to TC036: repository agents, archives of environments, libraries elsewhere.

Sources: https://github.com/triton-inference-server/checksum_repository_agent and
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/batcher.md
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tritonctl.checks.config.message import ConfigMessage
from tritonctl.checks.config.message import Path as Place
from tritonctl.checks.findings import Hit
from tritonctl.checks.repository import Model, Repository
from tritonctl.checks.rule import advice, error
from tritonctl.checks.rules.layout.files import MODEL_FOLDER, environment_value
from tritonctl.checks.small_file import UnreadableError, exists, is_file, read_small

_CHECKSUM, _HASH = "checksum", "MD5"
_MAX_HASHED_BYTES = 64 << 20
_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
# The first bytes of archives that libarchive reads: gzip, bzip2, xz, zstd, lz4, zip, 7z, cpio.
_ARCHIVES = (
    *(b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"),
    *(b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"0707", b"\xc7\x71", b"\x71\xc7", b"\x1f\x9d"),
)
_TAR, _TAR_AT = b"ustar", 257


@error(
    "TC034 repository-agent",
    summary="a repository agent that refuses the model, or that the server does not have",
    reason="Triton runs the agents before it loads the model, and refuses the model if one fails.",
    shows="elsewhere",
    needs_valid_config=True,
)
def repository_agent(config: ConfigMessage, model: Model, repository: Repository) -> Iterator[Hit]:
    for index, agent in enumerate(config.message.model_repository_agents.agents):
        path = ("model_repository_agents", "agents", index)
        if not agent.name:
            yield Hit(
                f"agent number {index + 1} has no name",
                'name it: name: "checksum"',
                config.span(*path),
            )
        elif repository.target.backends is not None:
            yield Hit(
                f"the embedded server has no repository agents, and {model.name} needs "
                f"{agent.name}",
                "serve it in containers, `tritonctl up --mode docker`, or remove the agent",
                config.span(*path, "name"),
            )
        for key, value in agent.parameters.items() if agent.name == _CHECKSUM else ():
            if problem := _checksum_problem(model, key, value):
                yield Hit(
                    problem,
                    "write the file's MD5 sum: "
                    f'parameters {{ key: "{_HASH}:1/model.onnx" value: "…" }}, from md5sum',
                    config.name_span(*path, "parameters", key),
                )


def _checksum_problem(model: Model, key: str, expected: str) -> str | None:
    kind, _, name = key.partition(":")
    if kind != _HASH:
        return f"the checksum agent knows no {kind}, only {_HASH}"
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        return None
    try:
        content = read_small(model.path / name, _MAX_HASHED_BYTES)
    except UnreadableError:
        return None if is_file(model.path / name) else f"{name or 'the file'} is not there"
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return None if digest == expected else f"{name} has the MD5 sum {digest}"


@error(
    "TC035 environment-archive",
    summary="a Python environment that is no archive",
    reason="The Python backend unpacks it when it loads the model: `archive_read_open_filename() "
    "failed`.",
    needs_valid_config=True,
)
def environment_archive(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    value = environment_value(config, model)
    if value is None or not value.startswith(MODEL_FOLDER):
        return
    path = model.path / value.removeprefix(MODEL_FOLDER).lstrip("/")
    start = _first_bytes(path)
    is_tar = start is not None and start[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR
    if start is not None and not is_tar and not start.startswith(_ARCHIVES):
        yield Hit(
            f"{path.relative_to(model.path)} is no archive" + ("" if start else ": it is empty"),
            "create it with conda-pack, or name the folder of an unpacked one",
            config.span("parameters", "EXECUTION_ENV_PATH", "string_value"),
        )


def _first_bytes(path: Path) -> bytes | None:
    """Return the start of a regular file; None for anything else."""
    try:
        if not is_file(path):
            return None
        with path.open("rb") as file:
            return file.read(_TAR_AT + len(_TAR))
    except (OSError, ValueError):
        return None


@advice(
    "TC036 absent-library",
    summary="a library or a Python environment that this machine does not have",
    reason="Triton refuses the model on a server without it: `Batching library path not found`, "
    "`Failed to get the canonical path`.",
    shows="elsewhere",
    needs_valid_config=True,
)
def absent_library(config: ConfigMessage, model: Model) -> Iterator[Hit]:
    parameters = config.message.parameters
    paths: dict[Place, str] = {}
    if _STRATEGY in parameters:
        paths["parameters", _STRATEGY, "string_value"] = parameters[_STRATEGY].string_value
    environment = environment_value(config, model) or ""
    if environment.startswith("/"):
        paths["parameters", "EXECUTION_ENV_PATH", "string_value"] = environment
    for index, name in enumerate(config.message.model_operations.op_library_filename):
        # The system finds libraries without a folder in its own places.
        if "/" in name:
            paths["model_operations", "op_library_filename", index] = name
    for place, value in paths.items():
        if value and not exists(Path(value)):
            yield Hit(
                f"{value} is not on this machine",
                "put it there on the server, or correct the path",
                config.span(*place),
            )
