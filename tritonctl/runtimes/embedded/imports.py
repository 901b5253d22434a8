# SPDX-License-Identifier: Apache-2.0
"""Check, before loading, that the server's environment has the modules that steps import."""

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
from tritonctl.runtimes.embedded.installation import ServerInstallation

_STUB_MODULES = {"triton_python_backend_utils", "c_python_backend_utils"}  # provided by the stub
# `find_spec` runs no code of the module.
_FIND_SPEC_SCRIPT = (
    "import importlib.util, json, sys; "
    "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is None]))"
)


def refuse_missing_imports(
    backends: Sequence[PythonBackend], installation: ServerInstallation
) -> None:
    """Raise ConfigurationError, with file and line, for a module that the server lacks.

    Only top-level imports of a project's own backends count, not imports in functions or `try`.
    """
    imported: dict[str, tuple[Path, int, PythonBackend]] = {}
    shipped = bundled.search_path(None)[0] / "python_backends"
    for backend in backends:
        if not backend.folder.is_relative_to(shipped):
            for name, file, line in _external_imports(backend):
                imported.setdefault(name, (file, line, backend))
    for name in _missing_modules(sorted(imported), installation):
        file, line, backend = imported[name]
        raise ConfigurationError(
            f"{file}:{line} imports {name}, which the server's Python environment does not have",
            remedy=f"write its package, with its version, into {backend.folder}/requirements.txt, "
            "or put the module next to model.py",
        )


def _external_imports(backend: PythonBackend) -> Iterator[tuple[str, Path, int]]:
    """Yield top-level package, file and line of each import from outside the backend.

    Shared modules only count if the backend imports them.
    """
    files = {relative: file for file, relative in backend.version_files() if file.suffix == ".py"}
    local_modules = {Path(relative).parts[0].removesuffix(".py") for relative in files}
    pending = [
        relative for relative in files if Path(relative).parts[0] not in backend.shared_folders
    ]
    seen = {*pending}
    while pending:
        file = files[pending.pop()]
        for name, line in _file_imports(file):
            top_level = name.partition(".")[0]
            if top_level not in local_modules | _STUB_MODULES:
                yield top_level, file, line
            relative = f"{name.replace('.', '/')}.py"
            if relative in files and relative not in seen:
                seen.add(relative)
                pending.append(relative)


def _file_imports(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the modules of top-level imports, with lines; `x` and `x.y` of `from x import y`."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:  # ValueError: not UTF-8, or with null bytes
        line = getattr(error, "lineno", None) or 1
        raise ConfigurationError(
            f"{file}:{line} is not valid Python: {getattr(error, 'msg', error)}",
            remedy="fix the file",
        ) from error
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _missing_modules(names: Sequence[str], installation: ServerInstallation) -> list[str]:
    if not names:
        return []
    python = shutil.which("python3", path=installation.environment["PATH"])
    if python is None:
        return []
    result = subprocess.run(
        [python, "-I", "-c", _FIND_SPEC_SCRIPT, *names],
        env=installation.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    missing: list[str] = json.loads(result.stdout) if result.returncode == 0 else []
    return missing
