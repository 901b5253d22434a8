# SPDX-License-Identifier: Apache-2.0
"""Names that nothing in a model.py defines: only where it surely fails to load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.checks.repositories import put
from tritonctl.checks.checker import check_repository
from tritonctl.checks.repository import Target
from tritonctl.checks.rules import RULES

CONFIG = 'name: "m"\nbackend: "python"\n'
CODE = """\
{top}
class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    @staticmethod
    def auto_complete_config(config):
        {complete}
        return config

    def execute(self, requests):
        return [later(request) for request in requests]
"""


def found(
    folder: Path,
    *,
    top: str = "",
    initialize: str = "pass",
    complete: str = "pass",
    completes: bool = True,
) -> list[str]:
    """The names that are undefined."""
    code = CODE.format(top=top, initialize=initialize, complete=complete)
    files = {"m/config.pbtxt": CONFIG, "m/1/model.py": code}
    target = Target(completes=completes)
    report = check_repository(put(folder, files), target, rules=[RULES["TC244"]])
    return [f.text[f.column - 1 : f.end - 1] for f in report.findings]


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "self.size = np.zeros(4)",
        "self.log = log = logger.info(args)",
        "print(json.loads(args['model_config']))",
    ],
)
def test_in_initialize(line: str, tmp_path: Path) -> None:
    """Whatever is done with it."""
    [name] = found(tmp_path, initialize=line)
    assert name in ("nothing", "np", "logger", "json")


def test_elsewhere(tmp_path: Path) -> None:
    """At the top of the module, and in auto_complete_config where the server calls it."""
    assert found(tmp_path / "top", top="SIZE = np.float32(1)") == ["np"]
    assert found(tmp_path / "complete", complete="nothing") == ["nothing"]
    assert found(tmp_path / "uncalled", complete="nothing", completes=False) == []


def test_the_nearest_name(tmp_path: Path) -> None:
    """A misspelt one."""
    files = {
        "m/config.pbtxt": CONFIG,
        "m/1/model.py": CODE.format(
            top="import numpy", initialize="nunpy.zeros(1)", complete="pass"
        ),
    }
    [finding] = check_repository(put(tmp_path, files), rules=[RULES["TC244"]]).findings
    assert (finding.message, finding.fix) == ("model.py defines no nunpy", "did you mean numpy?")


@pytest.mark.parametrize(
    ("top", "line"),
    [
        ("import os.path", "os.getpid()"),
        ("import numpy as np", "np.zeros(1)"),
        ("from numpy import *", "zeros(1)"),
        ("exec('size = 4')", "size"),
        ("globals()['size'] = 4", "size"),
        ("", "print(len(args), __name__, __file__)"),
        ("", "print([one for one in args], {k: v for k, v in args.items()})"),
        ("", "nothing if args is None else 0"),
        ("", "args or nothing"),
        ("", "size: Nothing = 4"),
        ("", "self.later = lambda: nothing"),
        ("", "try:\n            nothing\n        except NameError:\n            pass"),
        ("", "if args.get('x'):\n            nothing"),
        ("", "if not args:\n            return\n        nothing"),
        ("", "import numpy\n        numpy.zeros(1)"),
        ("def made():\n    global size\n    size = 4\nmade()", "size"),
        ("type_ = float if True else nothing", "type_"),
        ("try:\n    import json\nexcept ImportError:\n    nothing", "json"),
        ("class Other:\n    size = nothing", "0"),
        ("def other(size=1):\n    return nothing", "0"),
    ],
)
def test_names_that_may_be_there(top: str, line: str, tmp_path: Path) -> None:
    """Bound anywhere, built in, or perhaps never looked up."""
    assert found(tmp_path, top=top, initialize=line) == []
