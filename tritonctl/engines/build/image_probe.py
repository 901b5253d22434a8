# SPDX-License-Identifier: Apache-2.0
"""Checks inside an image that it has what a stage imports, before any long work starts."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tritonctl.errors import CommandFailedError, HostError
from tritonctl.host.process import run

_PYTHON, _LACKS, _ABSENT = "@python ", "@lacks ", "@absent "
# Every import is tried, so that one run names everything that the image lacks; the other statements
# of a probe are about what was imported.
_PROGRAM = f"""
import json, platform, sys
print({_PYTHON!r} + platform.python_version())
scope, lacking = {{}}, False
for statement in json.loads(sys.argv[1]):
    if lacking and not statement.startswith("import "):
        continue
    try:
        exec(statement, scope)
    except Exception as error:
        lacking = True
        said = statement + ": " + type(error).__name__ + ": " + str(error)
        print({_LACKS!r} + said.splitlines()[0])
for statement in json.loads(sys.argv[2]):
    try:
        exec(statement, {{}})
    except Exception:
        print({_ABSENT!r} + statement)
"""


@dataclass(frozen=True)
class ImageFacts:
    """What an image has. `python`: its version; `absent`: statements about extras that failed."""

    python: Version
    absent: tuple[str, ...]


def check_image(
    image: str,
    command: Sequence[str],
    probe: Sequence[str],
    *,
    requires_python: str,
    log: Path,
    remedy: str,
    extras: Sequence[str] = (),
) -> ImageFacts:
    """Run Python statements in an image; `command` starts its interpreter, output goes to `log`.

    extras: statements that may fail.

    Raises HostError, with every import that fails, or when the image runs no Python of the kind.
    """
    lines: list[str] = []
    argv = [*command, "-c", _PROGRAM, json.dumps(statements(probe))]
    argv.append(json.dumps(statements(extras)))
    try:
        run(argv, cwd=log.parent, log=log, on_line=lines.append, remedy=remedy)
    except CommandFailedError as error:
        raise HostError(
            f"cannot start python3 in the image {image} (status {error.returncode})",
            remedy=remedy,
            details=error.details,
        ) from error
    versions = _marked(lines, _PYTHON)
    # The upper bound is that of the wheels we install; an image brings its own.
    bounds = map(str, SpecifierSet(requires_python))
    least = SpecifierSet(",".join(bound for bound in bounds if bound.startswith(">")))
    if versions and not least.contains(Version(versions[0])):
        raise HostError(f"the image {image} has Python {versions[0]}, not {least}", remedy=remedy)
    lacking = _marked(lines, _LACKS)
    if lacking:
        raise HostError(
            f"the image {image} lacks what the build needs: {'; '.join(lacking)}",
            remedy=remedy,
            details="\n".join(lines[-20:]),
        )
    if not versions:
        raise HostError(
            f"python3 in the image {image} does not say its version",
            remedy=remedy,
            details="\n".join(lines[-20:]),
        )
    return ImageFacts(Version(versions[0]), tuple(_marked(lines, _ABSENT)))


def statements(probe: Sequence[str]) -> list[str]:
    """The statements of a probe, with one statement for each import."""
    imports = []
    for node in ast.parse("\n".join(probe)).body:
        if isinstance(node, ast.Import):
            imports += [ast.unparse(ast.Import(names=[name])) for name in node.names]
        else:
            imports.append(ast.unparse(node))
    return imports


def _marked(lines: Sequence[str], mark: str) -> list[str]:
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]
