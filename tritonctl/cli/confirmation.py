# SPDX-License-Identifier: Apache-2.0
"""Ask the user before removing something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.output import Console


def confirm(console: Console, summary: str) -> None:
    """Ask the user. Raises UsageError unless the answer is yes."""
    answer = None
    if not console.as_json:
        console.note(summary)
        answer = console.ask("Remove them? [y/N] ")
    if answer is None or answer.strip().lower() not in ("y", "yes"):
        raise UsageError(
            "nothing removed: not confirmed",
            remedy="answer `y`, or add `--yes`; `--dry-run` only lists",
        )
