# SPDX-License-Identifier: Apache-2.0
"""The error of a failed build, and helpers that raise it."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class BuildError(Exception):
    """A build failed for a reason that the user can act on.

    `problem` names the fault and its place; `remedy` names the next command or change.
    """

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return " (did you mean X?)" for the choice closest to `word`, or ""."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def did_you_mean_class(name: str, choices: Iterable[str]) -> str:
    """Return the same for a model class. Another number or family is not a misspelling."""
    numbers = re.findall(r"\d+", name)
    same_numbers = [choice for choice in choices if re.findall(r"\d+", choice) == numbers]
    close = difflib.get_close_matches(name, same_numbers, n=1, cutoff=0.88)
    return f" (did you mean {close[0]}?)" if close else ""


def read_json_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Return the JSON object in `path`.

    Raises:
        BuildError: the file cannot be read or does not hold a JSON object in UTF-8.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise BuildError(f"{path}: its JSON is nested too deeply", remedy=remedy) from error
    except OSError as error:
        raise BuildError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from error
    except UnicodeDecodeError as error:
        raise BuildError(f"{path}: is not UTF-8 text: {error.reason}", remedy=remedy) from error
    except json.JSONDecodeError as error:
        location = f"{path}:{error.lineno}:{error.colno}"
        raise BuildError(f"{location}: is not valid JSON: {error.msg}", remedy=remedy) from error
    except ValueError as error:  # a number of more digits than Python reads
        raise BuildError(f"{path}: is not valid JSON: {error}", remedy=remedy) from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise BuildError(f"{path}: expected a JSON object, found a {kind}", remedy=remedy)
    return value
