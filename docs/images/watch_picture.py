# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/watch.svg: what `tritonctl rollout watch` showed of a rollout, as it moved.

python docs/images/watch_picture.py [PROJECT [NUMBER]]     # after the rollout: its journal has all
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tritonctl.cli.console.rollout_view import COLUMNS, rollout_lines
from tritonctl.project.file import load_project
from tritonctl.rollout.journal import replay
from tritonctl.rollout.status import RolloutStatus, rollout_status

PICTURE = Path(__file__).with_name("watch.svg")
FASTER = 4  # than it was
LOOK_SECONDS = 1.0  # of the rollout, between two pictures
WIDTH, LINE, MARGIN, TITLE = 8.4, 19, 16, 34
_COLOURS = {"red": "#ff7b72", "green": "#7ee787", "yellow": "#e3b341"}


@dataclass(frozen=True)
class Shown:
    """A line of the screen. begin, end: seconds of the picture; end: None: it stays."""

    row: int
    text: Text
    begin: float
    end: float | None


def main(project: Path, number: int | None) -> None:
    """Look again at each moment of the journal, and draw."""
    found = rollout_status(load_project(project), number)
    screens = list(looks(found))
    PICTURE.write_text(drawn(list(kept(screens)), found), encoding="utf-8")


def looks(found: RolloutStatus) -> Iterator[tuple[float, Sequence[Text]]]:
    """Seconds since it began, and the screen then."""
    began, at = found.entries[0].at, found.entries[0].at
    ends = found.entries[-1].at
    holder = found.folder.parent / "controller.json"
    controller = str(json.loads(holder.read_text(encoding="utf-8"))["pid"])
    while at < ends + LOOK_SECONDS:
        entries = [entry for entry in found.entries if entry.at <= at]
        state = replay(entries)
        assert state is not None  # noqa: S101 - it has begun
        then = replace(found, entries=entries, state=state)
        if not state.closed:
            then = replace(then, controller=controller)
        yield at - began, list(rollout_lines(then))
        at += LOOK_SECONDS


def kept(screens: Sequence[tuple[float, Sequence[Text]]]) -> Iterator[Shown]:
    """Each line once for as long as it stays the same."""
    for row in range(max(len(screen) for _, screen in screens)):
        since, last = 0.0, Text()
        for at, screen in screens:
            now = screen[row] if row < len(screen) else Text()
            if now.markup != last.markup:
                if last.plain.strip():
                    yield Shown(row, last, since / FASTER, at / FASTER)
                since, last = at, now
        if last.plain.strip():
            yield Shown(row, last, since / FASTER, None)


def drawn(shown: Sequence[Shown], found: RolloutStatus) -> str:
    """The picture. Without animation, its last screen."""
    width = COLUMNS * WIDTH + 2 * MARGIN
    height = (max(one.row for one in shown) + 1) * LINE + TITLE + MARGIN
    lights = "".join(
        f'<circle cx="{20 + 18 * place}" cy="17" r="6" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    title = f"tritonctl rollout watch -n {found.number}   ({FASTER} × as fast as it was)"
    texts = "\n".join(map(_text, shown))
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img"
  aria-label="tritonctl rollout watch: {escape(found.reason, quote=True)}">
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #d6deeb;
  white-space: pre; }}
.shown {{ visibility: hidden; animation-name: on; animation-timing-function: step-end; }}
.stays {{ animation: on 1ms forwards; }}
@keyframes on {{ from, to {{ visibility: visible; }} }}
@media (prefers-reduced-motion: reduce) {{ .shown {{ animation: none; }}
  .stays {{ visibility: visible; }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#161b22"/>{lights}
<text x="90" y="22" style="fill:#9aa7b5">{escape(title)}</text>
{texts}
</svg>
"""


def _text(one: Shown) -> str:
    pieces = "".join(_piece(each.text, str(each.style)) for each in one.text.render(Console()))
    y = TITLE + MARGIN + one.row * LINE
    when = f"animation-delay:{one.begin:.2f}s"
    if one.end is not None:
        when += f";animation-duration:{one.end - one.begin:.2f}s"
    kind = "shown" if one.end is not None else "shown stays"
    return f'<text x="{MARGIN}" y="{y}" class="{kind}" style="{when}">{pieces}</text>'


def _piece(text: str, style: str) -> str:
    words = style.split()
    found = [f"fill:{_COLOURS[word]}" for word in words if word in _COLOURS]
    found += ["font-weight:bold"] if "bold" in words else []
    found += ["opacity:.65"] if "dim" in words else []
    found += ["text-decoration:underline"] if "reverse" in words else []
    text = escape(text)
    return f'<tspan style="{";".join(found)}">{text}</tspan>' if found else text


if __name__ == "__main__":
    main(Path(*sys.argv[1:2]), int(sys.argv[2]) if sys.argv[2:] else None)
