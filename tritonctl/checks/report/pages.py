# SPDX-License-Identifier: Apache-2.0
"""The rules as pages of the documentation: docs/reference/check-rules, by `make rules`.

Everything on them comes from the rules, so the two cannot disagree.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tritonctl.checks.examples.files import Example
from tritonctl.checks.live.rules import LIVE_RULES, LiveRule
from tritonctl.checks.report.formats import described, differences
from tritonctl.checks.rule import Rule
from tritonctl.checks.rules import RULES

INDEX = "README.md"
_GENERATED = "<!-- Made by `make rules` from the rules themselves: edits are lost. -->\n"
_LANGUAGES = {".pbtxt": "pbtxt", ".py": "python", ".json": "json"}
# Where an issue such as server#8592 is kept; the rest is Triton's own.
_OTHER_HOMES = {"TensorRT-LLM": "NVIDIA", "vllm": "vllm-project", "onnxruntime": "microsoft"}
_SEVERITIES = (
    "Error: the server refuses it or answers wrongly. Warning: it works, but not as intended. "
    "Advice: it could be better. `tritonctl check --explain TC101` prints a rule's page."
)
_LEAVE_OUT = """\
## To leave it out

`tritonctl check --ignore {id}`, or, on the line itself or alone on the line above:

```
# tritonctl: ignore[{id}]
```
"""
_LIVE = """\
## On a running server

What `tritonctl check --url URL` compares: [check](../check.md). Where only this machine
reaches the port, an open service is only advice.
"""
_SHOWN = {
    "traffic": "Triton loads the model; it goes wrong when requests come.",
    "elsewhere": "Shows only with a backend, a GPU or a host that the server of our tests does not "
    "have: the rule rests on documentation.",
}


def pages() -> dict[str, str]:
    """Every page by its file's name: one per rule, and the table of all."""
    return {INDEX: _index()} | {f"{name}.md": _page(rule) for name, rule in RULES.items()}


def write(folder: Path) -> None:
    """Write every page, and remove those of rules that no longer exist."""
    wanted = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def _index() -> str:
    rows = [
        f"| [{name}]({name}.md) | {rule.name} | {rule.severity} | {_cell(rule.summary)} | "
        f"{_issues(rule)} |"
        for name, rule in sorted(RULES.items())
    ]
    answered = len({issue for rule in RULES.values() for issue in rule.answers})
    return "\n".join(
        [
            _GENERATED,
            "# Rules of `tritonctl check`\n",
            f"{len(RULES)} rules; {answered} reports of users name what they find. {_SEVERITIES}\n",
            "| id | name | severity | looks for | issues |",
            "|---|---|---|---|---|",
            *rows,
            "",
            _LIVE,
            "| id | name | severity | on loopback | looks for |",
            "|---|---|---|---|---|",
            *(_live_row(rule) for rule in LIVE_RULES.values()),
            "",
        ]
    )


def _live_row(rule: LiveRule) -> str:
    on_loopback = rule.on_loopback or ""
    return f"| {rule.id} | {rule.name} | {rule.severity} | {on_loopback} | {_cell(rule.summary)} |"


def _page(rule: Rule) -> str:
    parts = [
        _GENERATED,
        f"# {rule.id} {rule.name}\n",
        f"**{rule.severity}**. Looks for {rule.summary}.\n",
        f"{rule.why}\n",
        f"{_when(rule)}\n",
    ]
    for title, example in differences(rule):
        parts += [f"## {title}\n", *_files(example)]
    parts.append(_LEAVE_OUT.format(id=rule.id))
    if rule.answers:
        parts.append(f"## Reported by users\n\n{_issues(rule)}\n")
    return "\n".join(parts)


def _when(rule: Rule) -> str:
    """When the mistake shows."""
    if rule.shows != "load":
        return _SHOWN[rule.shows]
    if rule.severity == "error":
        return "Triton refuses to load the model."
    return "Triton loads the model anyway."


def _files(example: Example) -> Iterator[str]:
    for name, content in example.items():
        if isinstance(content, str):
            yield f"`{name}`\n\n{_block(name, content)}\n"
        else:
            yield f"`{name}` {described(content)}\n"


def _block(name: str, text: str) -> str:
    # A fence must be longer than any in the text.
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{_LANGUAGES.get(Path(name).suffix, '')}\n{text.rstrip()}\n{fence}"


def _issues(rule: Rule) -> str:
    return ", ".join(_linked(issue) for issue in rule.answers)


def _linked(issue: str) -> str:
    project, _, number = issue.partition("#")
    owner = _OTHER_HOMES.get(project, "triton-inference-server")
    return f"[{issue}](https://github.com/{owner}/{project}/issues/{number})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
