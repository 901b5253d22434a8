# SPDX-License-Identifier: Apache-2.0
"""The order of the rooms: each imports only what stands below it, wherever in a module."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[3]
# A room is a package of tritonctl/, or a module that lies loose in it. From the top down; each
# imports only the rooms that its entry names.
ALLOWED: dict[str, set[str]] = {
    "__main__": {"cli", "errors"},
    "cli": {
        "tuning",
        "rollout",
        "loadtest",
        "doctor",
        "bundle",
        "runtimes",
        "smoke",
        "top",
        "security",
        "releases",
        "bulk",
        "frontend",
        "repository",
        "checks",
        "engines",
        "store",
        "protocol",
        "project",
        "supervision",
        "host",
        "errors",
    },
    "tuning": {
        "loadtest",
        "runtimes",
        "repository",
        "engines",
        "protocol",
        "project",
        "host",
        "errors",
    },
    "rollout": {
        "loadtest",
        "runtimes",
        "gateway",
        "top",
        "releases",
        "frontend",
        "store",
        "protocol",
        "project",
        "supervision",
        "host",
        "errors",
    },
    "loadtest": {"runtimes", "engines", "protocol", "project", "supervision", "host", "errors"},
    "doctor": {"runtimes", "repository", "project", "host", "errors"},
    "bundle": {"runtimes", "repository", "engines", "store", "project", "host", "errors"},
    "__init__": {
        "runtimes",
        "monitoring",
        "repository",
        "checks",
        "engines",
        "protocol",
        "project",
        "host",
        "errors",
    },
    "runtimes": {
        "gateway",
        "smoke",
        "security",
        "monitoring",
        "releases",
        "frontend",
        "repository",
        "checks",
        "engines",
        "store",
        "protocol",
        "project",
        "supervision",
        "host",
        "errors",
    },
    "gateway": {"releases", "project", "supervision", "host", "errors"},
    "smoke": {"repository", "engines", "protocol", "project", "host", "errors"},
    "top": {"repository", "protocol", "supervision", "errors"},
    "security": {"repository", "protocol", "project", "host", "errors"},
    "monitoring": {"repository", "project", "host"},
    "releases": {"repository", "engines", "store", "protocol", "project", "host", "errors"},
    "bulk": {"protocol", "host", "errors"},
    "frontend": {"engines", "protocol", "http2", "project", "supervision", "host", "errors"},
    "repository": {
        "checks",
        "engines",
        "store",
        "protocol",
        "project",
        "formats",
        "host",
        "errors",
    },
    "checks": {"protocol", "project", "formats", "host", "errors"},
    "engines": {"store", "project", "formats", "host", "errors"},
    "store": {"project", "host", "errors"},
    "protocol": {"http2", "host", "errors"},
    "http2": set(),
    "project": {"host", "errors"},
    "formats": set(),
    "supervision": set(),
    "host": {"errors"},
    "errors": set(),
}
ROOMS = tuple(ALLOWED)
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "tritonctl").rglob("*.py"))
    if "_bundled" not in path.parts
}


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and module of every import of ours: in functions and for type checkers, too."""
    for node in _nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module or "" for name in inner]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name in MODULES)


def _arrows() -> Mapping[str, set[str]]:
    return {
        module: {target for _, target in _imports(path)} - {module}
        for module, path in MODULES.items()
    }


def test_every_room_has_its_place() -> None:
    """A new room is named here, and so are its neighbours."""
    assert {_room(module) for module in MODULES} == set(ROOMS)


def test_the_guide_for_contributors_names_todays_rooms() -> None:
    """In their order, and in its table no file that has moved."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## Where a change goes")
    listed = re.findall(r"`([\w.]+)`", section.partition("top down:")[2].partition("The table")[0])
    assert [name.removesuffix(".py") for name in listed] == [
        room for room in ROOMS if not room.startswith("__")
    ]
    table = section.partition("| to change |")[2].partition("\n## ")[0]
    named = re.findall(r"`((?:tritonctl|builders|python_backends|docker|docs)/[^`<]*)", table)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_no_arrow_runs_up() -> None:
    """A room that imports one above it belongs there, or one of its modules belongs below."""
    up = [
        f"{path.relative_to(ROOT)}:{line}: {module} imports {target}"
        for module, path in MODULES.items()
        for line, target in _imports(path)
        if ROOMS.index(_room(module)) > ROOMS.index(_room(target))
    ]
    assert up == []


def test_rooms_import_only_the_rooms_in_the_table() -> None:
    """`ALLOWED` names every import between rooms, and none that no longer exists."""
    imported: dict[str, set[str]] = {room: set() for room in ROOMS}
    for module, path in MODULES.items():
        for _, target in _imports(path):
            if _room(module) != _room(target):
                imported[_room(module)].add(_room(target))
    assert imported == ALLOWED


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Two modules that need each other are one, or a third is missing."""
    circle: list[str] = []
    try:
        TopologicalSorter(_arrows()).prepare()
    except CycleError as error:
        circle = error.args[1]
    assert circle == []


def test_nothing_is_imported_by_its_name() -> None:
    """`importlib` would hide an arrow.

    The command line loads the verb that was typed, its own; the public API what it imports for
    type checkers above (test_public_api.py compares the two).
    """
    hidden = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for module, path in MODULES.items()
        if module not in {"tritonctl", "tritonctl.cli"}
        for node in _nodes(path)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rsplit(".", 1)[-1] in {"import_module", "__import__"}
    ]
    assert hidden == []


def test_no_module_is_ignored() -> None:
    """What .gitignore names is outside ruff, too, and missing from the wheel."""
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard", "tritonctl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert done.stdout == ""
