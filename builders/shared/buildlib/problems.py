# SPDX-License-Identifier: Apache-2.0
"""Failures of a build, and reading JSON files."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class BuildError(Exception):
    """A build failed for a reason that the user can act on.

    `problem` says what is wrong and where; `remedy` says what to type or change next.
    """

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def nearest(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the known word closest to `word`, or ""."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def nearest_class(name: str, known: Iterable[str]) -> str:
    """Return the same for a model class: another number or family is no misspelling."""
    numbers = re.findall(r"\d+", name)
    same = [other for other in known if re.findall(r"\d+", other) == numbers]
    close = difflib.get_close_matches(name, same, n=1, cutoff=0.88)
    return f" (did you mean {close[0]}?)" if close else ""


def read_json_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        BuildError: the file cannot be read, is not UTF-8 JSON, or holds no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise BuildError(f"{path}: is not UTF-8 text: {error.reason}", remedy=remedy) from error
    except json.JSONDecodeError as error:
        where = f"{path}:{error.lineno}:{error.colno}"
        raise BuildError(f"{where}: is not valid JSON: {error.msg}", remedy=remedy) from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise BuildError(f"{path}: expected a JSON object, found a {kind}", remedy=remedy)
    return value
