# SPDX-License-Identifier: Apache-2.0
"""Names, links and texts that end a check, break its formats or forge a line of its output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.another_user import as_root, open_folder
from tests.check_models.models import CONFIG, python_model
from tests.unit.checks.repositories import put
from tritonctl.checks import checker
from tritonctl.checks.checker import check_repository
from tritonctl.cli import application

_NOBODY = 65534
_MISSPELT = CONFIG.replace("max_batch_size", "max_batch_siz")
_LINKS = ["linked", "m/config.x", "m/1/model.py", "m/1/data", "m/2", "m/labels.txt"]


def check(repository: Path, output: str) -> tuple[str, str]:
    """Standard output and standard error."""
    done = CliRunner().invoke(application(), ["check", str(repository), "--format", output])
    assert done.exit_code == 6, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stdout, done.stderr


def link(repository: Path, name: str, target: Path | str) -> None:
    (repository / name).unlink(missing_ok=True)
    (repository / name).symlink_to(target)


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of nobody, whose permissions count from here on."""
    with open_folder() as folder:
        # What is imported later may lie where nobody may read.
        check_repository(put(folder / "loaded", python_model()))
        try:
            os.setegid(_NOBODY)
            os.seteuid(_NOBODY)
            yield folder
        finally:
            os.seteuid(0)
            os.setegid(0)


@as_root
@pytest.mark.parametrize("name", _LINKS)
def test_a_link_without_search_permission(name: str, unprivileged: Path) -> None:
    """It is one finding at most: those of the other files stay."""
    os.seteuid(0)
    repository = put(unprivileged / "models", {"m/config.pbtxt": _MISSPELT, "m/1/model.py": ""})
    put(unprivileged / "locked", {"inner/config.pbtxt": CONFIG})
    (unprivileged / "locked").chmod(0o700)
    link(repository, name, unprivileged / "locked" / "inner")
    os.seteuid(_NOBODY)
    rules = {finding.rule for finding in check_repository(repository).findings}
    assert "TC104" in rules


@pytest.mark.parametrize("name", _LINKS)
def test_a_link_whose_target_is_too_long(name: str, tmp_path: Path) -> None:
    """The kernel has another error for it than for a missing one."""
    repository = put(tmp_path, {"m/config.pbtxt": _MISSPELT, "m/1/model.py": ""})
    link(repository, name, "a" * 300)
    assert "TC104" in {finding.rule for finding in check_repository(repository).findings}


def test_nothing_asks_in_a_way_that_raises() -> None:
    """Path.exists(), is_file() and is_dir() raise; those of small_file.py do not."""
    folder = Path(checker.__file__).parent
    callers = {
        file.relative_to(folder).as_posix(): match[0]
        for file in folder.rglob("*.py")
        for match in re.finditer(r"\.(exists|is_file|is_dir)\(\)", file.read_text(encoding="utf-8"))
    }
    assert callers == {}


@pytest.mark.parametrize("output", ["text", "json", "sarif", "github"])
@pytest.mark.parametrize(
    "name", [b"a\xff\xfeb", b"x\n::error title=forged::y", b"e\x1b[31m\xe2\x80\xae"]
)
def test_a_name_in_every_format(name: bytes, output: str, tmp_path: Path) -> None:
    """Not UTF-8, a line that GitHub would take for a command, and what a terminal would obey."""
    put(tmp_path / os.fsdecode(name), {"config.pbtxt": _MISSPELT, "1/model.py": ""})
    for text in check(tmp_path, output):
        assert "\x1b" not in text
        assert "\u202e" not in text or output == "json"
        assert not any(line.strip().startswith("::error title=f") for line in text.splitlines())
    stdout, _ = check(tmp_path, output)
    if output in ("json", "sarif"):
        json.loads(stdout)
    if output == "sarif" and name.startswith(b"a"):
        assert "a%FF%FEb/config.pbtxt" in stdout
