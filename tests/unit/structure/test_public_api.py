# SPDX-License-Identifier: Apache-2.0
"""The public API: what `tritonctl/__init__.py` offers, and that the documents show all of it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tritonctl

if TYPE_CHECKING:
    from tests.unit.conftest import Sandbox

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# The examples of rules are models, not clients.
DOCUMENTS = [ROOT / "README.md", *(page for page in PAGES if page.parent.name != "check-rules")]


def _examples(document: Path) -> list[str]:
    text = document.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def _used(code: str) -> set[str]:
    """The names of `tritonctl` that code takes: imported, or as attributes of the module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "tritonctl":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "tritonctl":
            names.add(node.attr)
    return names


def test_the_documents_show_every_name_and_no_other() -> None:
    """What is public is documented; what is documented is public."""
    shown = {name for path in DOCUMENTS for code in _examples(path) for name in _used(code)}
    assert shown == set(tritonctl.__all__)


def test_the_readme_imports_the_public_api() -> None:
    """Its example is what users copy first."""
    assert [_used(code) for code in _examples(ROOT / "README.md")] == [{"TritonClient"}]


def test_examples_use_the_public_api_only() -> None:
    """Other modules may move."""
    for path in DOCUMENTS:
        for code in _examples(path):
            assert "from tritonctl." not in code, path.name


def test_the_lazy_names_are_those_of_type_checkers() -> None:
    """Written twice, because mypy follows only imports."""
    tree = ast.parse((ROOT / "tritonctl" / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)][:1]
    imported = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == tritonctl._MODULES
    assert tritonctl.__all__ == sorted([*imported, "__version__"])


@pytest.mark.parametrize("name", tritonctl.__all__)
def test_a_name_is_what_its_module_has(name: str) -> None:
    """Loaded at its first use, kept afterwards, and listed."""
    value = getattr(tritonctl, name)
    if name != "__version__":
        assert value is getattr(import_module(tritonctl._MODULES[name]), name)
        assert value.__doc__
    assert name in dir(tritonctl)
    assert vars(tritonctl)[name] is value


def test_an_unknown_name() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'tritonctl' has no attribute 'nonsense'"):
        _ = tritonctl.nonsense  # type: ignore[attr-defined]


def test_the_import_needs_the_standard_library_only() -> None:
    """A server's image has nothing else, and holds a copy of the file."""
    code = "import sys, tritonctl; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    loaded = set(done.stdout.split()) - {"__main__", "tritonctl"}
    assert loaded <= sys.stdlib_module_names


def test_a_client_loads_no_reader_of_projects() -> None:
    """Programs that only ask a server import neither YAML nor templates."""
    code = "import sys, tritonctl; tritonctl.AsyncTritonClient; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    )
    assert "grpc" in done.stdout.split()
    assert not {"yaml", "jinja2", "typer"} & set(done.stdout.split())


def test_the_examples_run(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need no server: a project is built, rendered and checked."""
    monkeypatch.chdir(sandbox.root)
    ran = 0
    for code in _examples(ROOT / "docs" / "reference" / "python-client.md"):
        if not {"TritonClient", "AsyncTritonClient", "start"} & _used(code):
            exec(compile(code, "python-client.md", "exec"), {})  # noqa: S102 - our own document
            ran += 1
    assert ran == 2
    assert (sandbox.root / "model_repository" / "speller" / "config.pbtxt").is_file()
