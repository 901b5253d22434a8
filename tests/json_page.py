# SPDX-License-Identifier: Apache-2.0
"""docs/reference/json-output.md: the example of each verb, and how what a verb prints differs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tritonctl.errors import UsageError

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "json-output.md"
MORE = "…"  # what the page leaves out
SECTIONS = dict(
    re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
)
EXAMPLES: dict[str, list[Any]] = {
    verb: [json.loads(each) for each in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]
    for verb, text in SECTIONS.items()
}
ERROR = set(UsageError("", remedy="").as_record())
# Objects whose fields are named by the project: models, metrics, settings. All are of one kind.
NAMED = {
    *("$defs", "artefacts", "changes", "classes", "durations_seconds", "engine", "failures"),
    *(
        "inputs",
        "knobs",
        "metrics",
        "models",
        "outputs",
        "p99_ms",
        "properties",
        "releases",
        "refused",
        "served",
    ),
    "settings",
}
# A builder's own, or a part of a project file.
FREE = {"evaluation", "histogram", "overlay", "request", "result"}


def as_documented(verb: str, printed: str, number: int = 0) -> Any:
    """What a verb printed under `--json`, after it was compared with that example of the page."""
    record = json.loads(printed)
    shown = EXAMPLES[verb][number]
    if (set(shown) >= ERROR) != (set(record) >= ERROR):  # one of the two tells of an error, too
        left, right = ({k: v for k, v in one.items() if k not in ERROR} for one in (shown, record))
    else:
        left, right = shown, record
    place = ".outputs" if verb == "infer" else ""  # the whole object has names of the model's
    assert differences(left, right, place) == [], f"{verb}: {printed[:2000]}"
    return record


def differences(shown: Any, printed: Any, where: str = "") -> list[str]:
    """Where an example has other fields, or values of another type; null and `…` may be any."""
    if MORE in (shown, printed) or None in (shown, printed):
        return []
    if kind(shown) != kind(printed):
        return [f"{where}: {kind(shown)} in the example, {kind(printed)} printed"]
    if isinstance(shown, dict):
        return _of_objects(shown, printed, where)
    if isinstance(shown, list) and shown and printed:
        return differences(shown[0], printed[0], f"{where}[]")
    return []


def kind(value: Any) -> str:
    """A type of JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "text"
    return "list" if isinstance(value, list) else "object"


def _of_objects(shown: dict[str, Any], printed: dict[str, Any], where: str) -> list[str]:
    name = where.rpartition(".")[2]
    if name in FREE:
        return []
    if name in NAMED:
        known = [key for key in shown if key != MORE]
        same = next((key for key in known if key in printed), None)
        pairs = [(shown[same], printed[same])] if same else []
        if not pairs and known and printed:
            pairs = [(shown[known[0]], next(iter(printed.values())))]
        return [found for pair in pairs for found in differences(*pair, f"{where}.NAME")]
    missing = set(shown) - set(printed) - {MORE}
    extra = set() if MORE in shown else set(printed) - set(shown)
    wrong = [f"{where}.{key} is not printed" for key in sorted(missing)]
    wrong += [f"{where}.{key} is not in the example" for key in sorted(extra)]
    for key in shown.keys() & printed.keys():
        wrong += differences(shown[key], printed[key], f"{where}.{key}")
    return wrong
