# SPDX-License-Identifier: Apache-2.0
"""Whether the server's environment has what a project's own steps import: asked before loading."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tritonctl.errors import ConfigurationError
from tritonctl.host import bundled
from tritonctl.repository.backends import PythonBackend
from tritonctl.server.embedded.installation import Installation

_GIVEN = {"triton_python_backend_utils", "c_python_backend_utils"}  # by the stub itself
# `find_spec` runs no code of the module.
_ASK = (
    "import importlib.util, json, sys; "
    "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]))"
)


def refuse_missing_imports(backends: Sequence[PythonBackend], installation: Installation) -> None:
    """Raise ConfigurationError, with its line, for a module that a step's stub would not find.

    Of what a project's own backends import as their files are read; a step that imports later, or
    tries to, is left to itself.
    """
    wanted: dict[str, tuple[Path, int, PythonBackend]] = {}
    shipped = bundled.search_path(None)[0] / "python_backends"
    for backend in backends:
        if not backend.folder.is_relative_to(shipped):
            for name, file, line in _imported_by(backend):
                wanted.setdefault(name, (file, line, backend))
    for name in _missing(sorted(wanted), installation):
        file, line, backend = wanted[name]
        raise ConfigurationError(
            f"{file}:{line} imports {name}, which the server's Python environment does not have",
            remedy=f"write its package, with its version, into {backend.folder}/requirements.txt, "
            "or put the module beside model.py",
        )


def _imported_by(backend: PythonBackend) -> Iterator[tuple[str, Path, int]]:
    """What its files import that is not beside them, by first names, with the place.

    Of what it shares with others, only the modules that it comes to.
    """
    files = {place: file for file, place in backend.code() if file.suffix == ".py"}
    beside = {Path(place).parts[0].removesuffix(".py") for place in files}
    waiting = [place for place in files if Path(place).parts[0] not in backend.shared_folders]
    seen = {*waiting}
    while waiting:
        file = files[waiting.pop()]
        for name, line in _imported(file):
            first = name.partition(".")[0]
            if first not in beside | _GIVEN:
                yield first, file, line
            place = f"{name.replace('.', '/')}.py"
            if place in files and place not in seen:
                seen.add(place)
                waiting.append(place)


def _imported(file: Path) -> Iterator[tuple[str, int]]:
    """The modules imported whenever the file is; `x` and `x.y` of `from x import y`."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or with null bytes
        line = getattr(error, "lineno", None) or 1
        raise ConfigurationError(
            f"{file}:{line} is no Python: {getattr(error, 'msg', error)}", remedy="correct it there"
        ) from error
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _missing(names: Sequence[str], installation: Installation) -> list[str]:
    if not names:
        return []
    python = shutil.which("python3", path=installation.environment["PATH"])
    if python is None:
        return []
    done = subprocess.run(
        [python, "-I", "-c", _ASK, *names],
        env=installation.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    missing: list[str] = json.loads(done.stdout) if done.returncode == 0 else []
    return missing
