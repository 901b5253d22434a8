# SPDX-License-Identifier: Apache-2.0
"""Asks before something is removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritonctl.errors import UsageError

if TYPE_CHECKING:
    from tritonctl.cli.console.voice import Console


def confirm(console: Console, summary: str) -> None:
    """Ask the user. Raises UsageError without a yes."""
    answer = None
    if not console.as_json:
        console.note(summary)
        answer = console.ask("Remove them? [y/N] ")
    if answer is None or answer.strip().lower() not in ("y", "yes"):
        raise UsageError(
            "nothing removed: not confirmed",
            remedy="answer `y`, or give `--yes`; `--dry-run` only lists",
        )
