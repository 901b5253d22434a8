# SPDX-License-Identifier: Apache-2.0
"""Checks that an image has the packages that a stage imports, before any long work starts."""

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

_PYTHON_MARK, _MISSING_MARK, _FAILED_EXTRA_MARK = "@python ", "@lacks ", "@absent "
# The program tries every import, so that one run reports all missing packages. The other statements
# of a probe use the imports; they are skipped once an import failed.
_PROGRAM = f"""
import json, platform, sys
print({_PYTHON_MARK!r} + platform.python_version())
scope, lacking = {{}}, False
for statement in json.loads(sys.argv[1]):
    if lacking and not statement.startswith("import "):
        continue
    try:
        exec(statement, scope)
    except Exception as error:
        lacking = True
        said = statement + ": " + type(error).__name__ + ": " + str(error)
        print({_MISSING_MARK!r} + said.splitlines()[0])
for statement in json.loads(sys.argv[2]):
    try:
        exec(statement, {{}})
    except Exception:
        print({_FAILED_EXTRA_MARK!r} + statement)
"""


@dataclass(frozen=True)
class ImageFacts:
    """Python and packages of an image."""

    python: Version
    failed_extras: tuple[str, ...]  # statements about extras that failed


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

    `extras` are statements that may fail. Raises HostError with every failed import, or when the
    image's Python is too old.
    """
    lines: list[str] = []
    argv = [*command, "-c", _PROGRAM, json.dumps(split_imports(probe))]
    argv.append(json.dumps(split_imports(extras)))
    try:
        run(argv, cwd=log.parent, log=log, on_line=lines.append, remedy=remedy)
    except CommandFailedError as error:
        raise HostError(
            f"cannot start python3 in the image {image} (status {error.returncode})",
            remedy=remedy,
            details=error.details,
        ) from error
    versions = _marked_lines(lines, _PYTHON_MARK)
    # Ignore the upper bound: it comes from the wheels we install, and an image has its own.
    bounds = map(str, SpecifierSet(requires_python))
    min_python = SpecifierSet(",".join(bound for bound in bounds if bound.startswith(">")))
    if versions and not min_python.contains(Version(versions[0])):
        raise HostError(
            f"the image {image} has Python {versions[0]}, not {min_python}", remedy=remedy
        )
    missing = _marked_lines(lines, _MISSING_MARK)
    if missing:
        raise HostError(
            f"the image {image} lacks packages that the build needs: {'; '.join(missing)}",
            remedy=remedy,
            details="\n".join(lines[-20:]),
        )
    if not versions:
        raise HostError(
            f"python3 in the image {image} does not report its version",
            remedy=remedy,
            details="\n".join(lines[-20:]),
        )
    return ImageFacts(Version(versions[0]), tuple(_marked_lines(lines, _FAILED_EXTRA_MARK)))


def split_imports(probe: Sequence[str]) -> list[str]:
    """Split the statements of a probe into one statement per import."""
    imports = []
    for node in ast.parse("\n".join(probe)).body:
        if isinstance(node, ast.Import):
            imports += [ast.unparse(ast.Import(names=[name])) for name in node.names]
        else:
            imports.append(ast.unparse(node))
    return imports


def _marked_lines(lines: Sequence[str], mark: str) -> list[str]:
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]
