# SPDX-License-Identifier: Apache-2.0
"""The architecture, read off the source: who may import whom, who may print, how long it is.

Each test walks all files and names every offender as `file:line: offence`.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Where things are. A module that moves changes this table and nothing else.
CONSOLE = "tritonctl/cli/console/output.py"
DRAWING = {  # what the console prints: they may use rich, as it may
    "tritonctl/cli/console/build_view.py",
    "tritonctl/cli/console/loadtest_view.py",
    "tritonctl/cli/console/table_text.py",
    "tritonctl/cli/console/tuning_view.py",
    "tritonctl/cli/console/top_view.py",
    "tritonctl/cli/console/rollout_view.py",
}
VERBS = "tritonctl/cli/"
COMMAND_LINE = "tritonctl/cli/__init__.py"  # --version uses typer.echo: there is no console yet
ENTRY_POINT = "tritonctl/__main__.py"
PBTXT = "tritonctl/repository/pbtxt.py"
STANDARD_LIBRARY_ONLY = {  # module: what it may import of ours
    "tritonctl/errors.py": set[str](),
    "tritonctl/supervision/exec_launcher.py": set[str](),
    "tritonctl/supervision/new_requests.py": set[str](),
    "tritonctl/supervision/progress.py": set[str](),
    "tritonctl/supervision/readiness.py": set[str](),
    "tritonctl/supervision/restarts.py": set[str](),
    "tritonctl/runtimes/ports.py": {"tritonctl.errors"},
    "tritonctl/runtimes/embedded/exit_record.py": {"tritonctl.supervision.restarts"},
    "tritonctl/runtimes/embedded/detached.py": {
        "tritonctl.runtimes.embedded.exit_record",
        "tritonctl.supervision.exec_launcher",
        "tritonctl.supervision.supervisor",
    },
    "tritonctl/runtimes/embedded/supervise_program.py": {
        "tritonctl.supervision.exec_launcher",
        "tritonctl.runtimes.embedded.detached",
        "tritonctl.runtimes.embedded.exit_record",
        "tritonctl.supervision.readiness",
        "tritonctl.supervision.restarts",
        "tritonctl.supervision.supervisor",
    },
    "tritonctl/runtimes/embedded/supervise.py": {
        "tritonctl.errors",
        "tritonctl.supervision.exec_launcher",
        "tritonctl.runtimes.embedded.detached",
        "tritonctl.runtimes.embedded.exit_record",
        "tritonctl.runtimes.ports",
        "tritonctl.supervision.progress",
        "tritonctl.supervision.readiness",
        "tritonctl.supervision.restarts",
        "tritonctl.supervision.supervisor",
    },
    "tritonctl/supervision/supervisor.py": {
        "tritonctl.supervision.exec_launcher",
        "tritonctl.supervision.new_requests",
        "tritonctl.supervision.readiness",
    },
}
CHECKER = {  # folder: what stands above it
    "tritonctl/checks/config": ("repository", "model_py", "analysis", "rules"),
    "tritonctl/checks/model_py": ("repository", "analysis", "rules"),
    "tritonctl/checks/analysis": ("rules",),
    "tritonctl/checks/rules": ("checker", "report"),
}
CHECKS = "tritonctl.checks"
RULES = ("error", "warning", "advice")  # their decorators

CONTENT_FOLDERS = ("builders", "docker", "python_backends", "ensembles", "loadtests")
DATA_FILES = ("builder.toml", "backend.toml", "ruff.toml")
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
PRINTING = {"print", "sys.stdout.write", "sys.stderr.write", "typer.secho", "typer.echo"}
MODULE_LINES, FUNCTION_LINES, MEDIAN_LINES = 400, 60, 10
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
PERSONAL_PATH = re.compile(r"(?<![\w.])/(work|home|Users)/\w+/\w")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def _below(folders: Iterable[str], *patterns: str) -> list[Path]:
    found = (ROOT / folder for folder in folders)
    return sorted(path for folder in found for name in patterns for path in folder.rglob(name))


PACKAGE = _below(["tritonctl"], "*.py")
CONTENT = _below(CONTENT_FOLDERS, "*.py")
EXAMPLES = _below(["examples"], "*.py")
TESTS = _below(["tests"], "*.py")
UNIT_TESTS = _below(["tests/unit"], "test_*.py")
DATA = _below(CONTENT_FOLDERS, *DATA_FILES)


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(_text(path))


@cache
def _nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(_tree(path)))


@cache
def _imports(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything a module imports, wherever in it."""
    found = []
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def _package_of(name: str) -> str:
    return name.split(".", maxsplit=1)[0]


def _functions(path: Path) -> Iterator[Function]:
    return (node for node in _nodes(path) if isinstance(node, Function))


def _length(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _none(offences: Iterable[tuple[Path, int, str]]) -> None:
    """Fail with every offender."""
    lines = [f"{_name(path)}:{line}: {offence}" for path, line, offence in offences]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def test_there_is_something_to_check() -> None:
    """A wrong path here would make every other test pass."""
    assert len(PACKAGE) > 40
    assert len(CONTENT) > 10
    assert len(EXAMPLES) > 0
    assert len(UNIT_TESTS) > 100
    assert len(TESTS) > len(UNIT_TESTS)
    assert len(DATA) >= 5
    named = {CONSOLE, *DRAWING, VERBS, COMMAND_LINE, ENTRY_POINT, PBTXT, *STANDARD_LIBRARY_ONLY}
    assert [name for name in sorted({*named, *CHECKER}) if not (ROOT / name).exists()] == []
    assert [folder for folder in CHECKER if not _below([folder], "*.py")] == []


def test_content_is_no_package() -> None:
    """Content is copied and run, never imported."""
    _none((path, 1, "") for path in _below([*CONTENT_FOLDERS, "examples"], "__init__.py"))


def test_content_never_imports_the_package() -> None:
    """It runs where tritonctl is not installed."""
    _none(
        (path, line, name)
        for path in CONTENT + EXAMPLES
        for line, name in _imports(path)
        if _package_of(name) == "tritonctl"
    )


def test_the_package_stays_light() -> None:
    """Heavy libraries live in environments of their own."""
    _none(
        (path, line, name)
        for path in PACKAGE
        for line, name in _imports(path)
        if _package_of(name) in HEAVY
    )


def test_only_the_console_prints() -> None:
    """`print` and `sys.stdout.write` elsewhere would escape --json and --quiet."""
    _none(
        (path, node.lineno, called)
        for path in PACKAGE
        if _name(path) != CONSOLE
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and (called := ast.unparse(node.func)) in PRINTING
        and (_name(path), called) != (COMMAND_LINE, "typer.echo")
    )


def test_only_the_console_draws() -> None:
    """So would rich, except in what the console itself prints."""
    _none(
        (path, line, name)
        for path in PACKAGE
        if _name(path) not in {CONSOLE, *DRAWING}
        for line, name in _imports(path)
        if _package_of(name) == "rich"
    )


def test_only_pbtxt_imports_triton_s_schema() -> None:
    """One door to model_config.proto."""
    users = {
        _name(path)
        for path in PACKAGE
        if any("model_config_pb2" in name for _, name in _imports(path))
    }
    assert users == {PBTXT}


def test_the_library_does_not_know_the_command_line() -> None:
    """Only `__main__` and the verbs themselves import tritonctl.cli."""
    users = {
        _name(path)
        for path in PACKAGE
        if any(name.startswith("tritonctl.cli") for _, name in _imports(path))
    }
    assert {user for user in users if not user.startswith(VERBS)} == {ENTRY_POINT}


def test_the_supervisor_is_standard_library_only() -> None:
    """It lives as long as the server does, and runs in images that have nothing else of ours."""
    _none(
        (ROOT / module, line, name)
        for module, of_ours in STANDARD_LIBRARY_ONLY.items()
        for line, name in _imports(ROOT / module)
        if _package_of(name) in HEAVY | {"tritonctl", "pydantic", "yaml", "rich", "typer"}
        and name not in of_ours
        and name.rpartition(".")[0] not in of_ours
    )


def test_the_checker_has_layers() -> None:
    """Files are read into a repository, facts are worked out of it, rules judge facts."""
    _none(
        (path, line, name)
        for folder, above in CHECKER.items()
        for path in _below([folder], "*.py")
        for line, name in _imports(path)
        if name.startswith(tuple(f"{CHECKS}.{one}" for one in above))
    )


def test_module_sizes() -> None:
    """A module fits into a head."""
    lengths = {path: len(_text(path).splitlines()) for path in PACKAGE + CONTENT}
    _none(
        (path, length, f"at most {MODULE_LINES} lines")
        for path, length in lengths.items()
        if length > MODULE_LINES
    )


def test_function_sizes() -> None:
    """A function fits on a screen."""
    _none(
        (path, one.lineno, f"{one.name} has {_length(one)} lines, at most {FUNCTION_LINES}")
        for path in PACKAGE + CONTENT
        for one in _functions(path)
        if _length(one) > FUNCTION_LINES
    )


@pytest.mark.parametrize("paths", [PACKAGE, CONTENT], ids=["package", "content"])
def test_median_function(paths: list[Path]) -> None:
    """Most functions do one thing."""
    lengths = [_length(function) for path in paths for function in _functions(path)]
    assert statistics.median(lengths) <= MEDIAN_LINES


def test_modules_are_documented() -> None:
    """Each says in its first line what it holds."""
    _none(
        (path, 1, "no docstring")
        for path in PACKAGE + CONTENT
        if not ast.get_docstring(_tree(path))
    )


def test_public_things_are_documented() -> None:
    """Public classes and functions, public methods of public classes."""
    _none(
        (path, node.lineno, f"{node.name} has no docstring")
        for path in PACKAGE + CONTENT
        for node in chain.from_iterable(map(_public, _tree(path).body))
        if not ast.get_docstring(node) and not _is_rule(node)
    )


def _is_rule(node: Function | ast.ClassDef) -> bool:
    """Whether it is a rule of `tritonctl check`: its decorator says what it looks for, and why."""
    calls = [one.func for one in node.decorator_list if isinstance(one, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in RULES for call in calls)


def _public(node: ast.stmt) -> list[Function | ast.ClassDef]:
    """A public definition, and a public class's public methods."""
    if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
        return []
    members = node.body if isinstance(node, ast.ClassDef) else []
    return [node, *(m for m in members if isinstance(m, Function) and m.name[0] != "_")]


def test_tests_say_what_they_test() -> None:
    """Each test has a docstring of one line or more."""
    _none(
        (path, one.lineno, f"{one.name} has no docstring")
        for path in UNIT_TESTS
        for one in _functions(path)
        if one.name.startswith("test_") and not ast.get_docstring(one)
    )


def test_licence_line() -> None:
    """SPDX first."""
    _none(
        (path, 1, "no licence line")
        for path in PACKAGE + CONTENT + EXAMPLES + TESTS + DATA
        if not _text(path).startswith("# SPDX-License-Identifier: Apache-2.0\n")
    )


def test_no_loose_ends() -> None:
    """Nothing is left "to do"; there is no absolute path of a developer's machine."""
    _none(
        (path, number, line.strip())
        for path in PACKAGE + CONTENT + EXAMPLES + TESTS + DATA
        for number, line in enumerate(_text(path).splitlines(), start=1)
        if UNFINISHED.search(line) or PERSONAL_PATH.search(line.replace("/home/me/", ""))
    )
