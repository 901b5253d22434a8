# SPDX-License-Identifier: Apache-2.0
"""What an image lacks is told before a build; here this interpreter stands for the image's.

tests/builders/test_quantise_container.py asks real images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tritonctl.engines.builds.image_probe import ImageFacts, check_image, split_imports
from tritonctl.errors import HostError

PYTHON = (sys.executable,)


def look(
    folder: Path,
    *probe: str,
    command: tuple[str, ...] = PYTHON,
    requires_python: str = ">=3.11,<3.12",
    extras: tuple[str, ...] = (),
) -> ImageFacts:
    return check_image(
        "some/image:1",
        command,
        probe,
        requires_python=requires_python,
        log=folder / "build.log",
        remedy="name another image",
        extras=extras,
    )


def test_an_image_that_has_all(tmp_path: Path) -> None:
    """What was imported is there for the statements behind it; an image's Python may be newer."""
    look(tmp_path, "import json, os.path as place", "assert json.dumps([1]) and place.join('a')")
    log = (tmp_path / "build.log").read_text(encoding="utf-8")
    assert log.startswith("@python 3.")


def test_what_may_be_missing(tmp_path: Path) -> None:
    """Each import by itself; the image's Python, for which it can be had elsewhere."""
    facts = look(tmp_path, "import json", extras=("import json, not_here, nor_here",))
    assert facts.failed_extras == ("import not_here", "import nor_here")
    assert facts.python.release[:2] == sys.version_info[:2]


def test_every_missing_import_is_told(tmp_path: Path) -> None:
    """Not the first alone, and nothing that follows from them."""
    with pytest.raises(HostError) as caught:
        look(tmp_path, "import json, not_here, json.not_there", "assert not_here.version > 3")
    assert caught.value.problem == (
        "the image some/image:1 lacks packages that the build needs: "
        "import not_here: ModuleNotFoundError: No module named 'not_here'; "
        "import json.not_there: ModuleNotFoundError: No module named 'json.not_there'"
    )
    assert caught.value.remedy == "name another image"


def test_an_assertion_that_fails(tmp_path: Path) -> None:
    """As of a version."""
    with pytest.raises(HostError, match=r"assert json\.__name__ == 'x': AssertionError"):
        look(tmp_path, "import json", "assert json.__name__ == 'x'")


def test_python_too_old(tmp_path: Path) -> None:
    """The stages' own code needs it."""
    with pytest.raises(HostError, match=r"some/image:1 has Python 3\.\d+\.\d+, not >=3\.99"):
        look(tmp_path, requires_python=">=3.99")


@pytest.mark.parametrize("source", ["raise SystemExit(125)", "import no_such_thing"])
def test_no_python_in_the_image(tmp_path: Path, source: str) -> None:
    """What the container engine says comes along."""
    script = tmp_path / "engine"
    script.write_text(f"#!{sys.executable}\nprint('no such image')\n{source}\n", encoding="utf-8")
    script.chmod(0o755)
    with pytest.raises(HostError, match="cannot start python3 in the image") as caught:
        look(tmp_path, "import json", command=(str(script),))
    assert "no such image" in str(caught.value.details)


def test_each_import_by_itself() -> None:
    """Other statements as they are."""
    probe = ["import a.b, c as d", "from e import f, g", "assert d"]
    expected = ["import a.b", "import c as d", "from e import f, g", "assert d"]
    assert split_imports(probe) == expected
