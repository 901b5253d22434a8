# SPDX-License-Identifier: Apache-2.0
"""The architecture, read off the source: who may import whom, who may print, how long it is."""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = sorted((ROOT / "tritonctl").rglob("*.py"))
CONTENT_FOLDERS = ("builders", "docker", "python_backends", "ensembles", "loadtests")
CONTENT = sorted(path for folder in CONTENT_FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
UNIT_TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
DATA = sorted(
    path
    for folder in CONTENT_FOLDERS
    for pattern in ("builder.toml", "backend.toml", "ruff.toml")
    for path in (ROOT / folder).rglob(pattern)
)
HEAVY = {
    "torch",
    "tensorrt",
    "tensorrt_llm",
    "onnx",
    "onnxruntime",
    "openvino",
    "openvino_genai",
    "transformers",
    "locust",
    "gevent",
    "click",
    "docker",
}
MODULE_LINES, FUNCTION_LINES, MEDIAN_LINES = 400, 60, 10

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(path: Path) -> Iterator[str]:
    """Dotted names of everything a module imports, wherever in it."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(_tree(path)):
        if isinstance(node, Function):
            yield node


def _length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


each_module = pytest.mark.parametrize("path", PACKAGE, ids=_name)
each_source = pytest.mark.parametrize("path", PACKAGE + CONTENT, ids=_name)


def test_there_is_something_to_check() -> None:
    """A wrong path here would make every other test pass."""
    assert len(PACKAGE) > 40
    assert len(CONTENT) > 10
    assert len(DATA) >= 5


@pytest.mark.parametrize("folder", [*CONTENT_FOLDERS, "examples"])
def test_content_is_no_package(folder: str) -> None:
    """Content is copied and run, never imported."""
    assert list((ROOT / folder).rglob("__init__.py")) == []


@pytest.mark.parametrize("path", CONTENT + EXAMPLES, ids=_name)
def test_content_never_imports_the_package(path: Path) -> None:
    """It runs where tritonctl is not installed."""
    assert [name for name in _imports(path) if name.split(".")[0] == "tritonctl"] == []


@each_module
def test_the_package_stays_light(path: Path) -> None:
    """Heavy libraries live in environments of their own."""
    assert [name for name in _imports(path) if name.split(".")[0] in HEAVY] == []


@each_module
def test_only_the_console_prints(path: Path) -> None:
    """`print`, `sys.stdout.write` and rich elsewhere would escape --json and --quiet."""
    if _name(path) == "tritonctl/console/voice.py":
        return
    calls = [ast.unparse(node.func) for node in ast.walk(_tree(path)) if isinstance(node, ast.Call)]
    forbidden = {"print", "sys.stdout.write", "sys.stderr.write", "typer.secho", "typer.echo"}
    if _name(path) == "tritonctl/cli/__init__.py":
        forbidden.remove("typer.echo")  # --version, before there is a console
    assert forbidden & set(calls) == set()
    if not _name(path).startswith("tritonctl/console/"):
        assert not [name for name in _imports(path) if name.split(".")[0] == "rich"]


@each_module
def test_only_pbtxt_imports_triton_s_schema(path: Path) -> None:
    """One door to model_config.proto."""
    users = any("model_config_pb2" in name for name in _imports(path))
    assert users == (_name(path) == "tritonctl/repository/pbtxt.py")


def test_the_library_does_not_know_the_command_line() -> None:
    """Only `__main__` and the verbs themselves import tritonctl.cli."""
    users = {
        _name(path)
        for path in PACKAGE
        if any(name.startswith("tritonctl.cli") for name in _imports(path))
    }
    assert {u for u in users if not u.startswith("tritonctl/cli/")} == {"tritonctl/__main__.py"}


@pytest.mark.parametrize(
    ("module", "of_ours"),
    [("readiness", []), ("supervisor", ["tritonctl.server.readiness.Readiness"])],
)
def test_the_supervisor_is_standard_library_only(module: str, of_ours: list[str]) -> None:
    """It lives as long as the server does, and runs in images that have nothing else of ours."""
    assert [
        name
        for name in _imports(ROOT / "tritonctl" / "server" / f"{module}.py")
        if name.split(".")[0] in HEAVY | {"tritonctl", "pydantic", "yaml", "rich", "typer"}
        and not any(allowed.startswith(name) for allowed in of_ours)
    ] == []


@pytest.mark.parametrize(
    ("folder", "above"),
    [
        ("config", ("repository", "model_py", "analysis", "rules")),
        ("model_py", ("repository", "analysis", "rules")),
        ("analysis", ("rules",)),
        ("rules", ("checker", "report")),
    ],
)
def test_the_checker_has_layers(folder: str, above: tuple[str, ...]) -> None:
    """Files are read into a repository, facts are worked out of it, rules judge facts."""
    checks = ROOT / "tritonctl" / "checks"
    forbidden = tuple(f"tritonctl.checks.{name}" for name in above)
    upwards = {
        (_name(path), name)
        for path in (checks / folder).rglob("*.py")
        for name in _imports(path)
        if name.startswith(forbidden)
    }
    assert upwards == set()


@each_source
def test_sizes(path: Path) -> None:
    """A module fits into a head, a function on a screen."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES
    too_long = {f.name: _length(f) for f in _functions(path) if _length(f) > FUNCTION_LINES}
    assert too_long == {}


@pytest.mark.parametrize("paths", [PACKAGE, CONTENT], ids=["package", "content"])
def test_median_function(paths: list[Path]) -> None:
    """Most functions do one thing."""
    lengths = [_length(function) for path in paths for function in _functions(path)]
    assert statistics.median(lengths) <= MEDIAN_LINES


@each_source
def test_public_things_are_documented(path: Path) -> None:
    """Modules, public classes and functions, public methods of public classes."""
    tree = _tree(path)
    assert ast.get_docstring(tree), "the module"
    undocumented = []
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            members = node.body if isinstance(node, ast.ClassDef) else []
            methods = [m for m in members if isinstance(m, Function) and m.name[0] != "_"]
            undocumented += [n.name for n in (node, *methods) if not ast.get_docstring(n)]
    assert undocumented == []


@pytest.mark.parametrize("path", UNIT_TESTS, ids=_name)
def test_tests_say_what_they_test(path: Path) -> None:
    """Each test has a docstring of one line or more."""
    silent = [
        f.name for f in _functions(path) if f.name.startswith("test_") and not ast.get_docstring(f)
    ]
    assert silent == []


@pytest.mark.parametrize("path", PACKAGE + CONTENT + EXAMPLES + TESTS + DATA, ids=_name)
def test_licence_line_and_no_loose_ends(path: Path) -> None:
    """SPDX first; nothing left "to do"; no absolute path of a developer's machine."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    words = "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X"))
    assert re.search(rf"\b({words})\b", text) is None
    assert re.search(r"(?<![\w.])/(work|home|Users)/\w+/\w", text.replace("/home/me/", "")) is None
