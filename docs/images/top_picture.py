# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/top.svg: `tritonctl top` of a real server while real streams run.

tritonctl up && python docs/images/top_picture.py MODEL [PROJECT]
"""

from __future__ import annotations

import random
import re
import sys
import threading
from io import StringIO
from pathlib import Path

from rich.console import Console

from tritonctl.cli.console.top_view import TopView
from tritonctl.errors import TritonctlError
from tritonctl.project.file import load_project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import SamplingParameters
from tritonctl.runtimes.lifecycle import running_server
from tritonctl.supervision.process_usage import ServerUsage
from tritonctl.top.layout import layout_of
from tritonctl.top.watching import MetricsEndpoint, MetricsSnapshot, MetricsWatcher

PICTURE = Path(__file__).with_name("top.svg")
STREAMS, SECONDS, COLUMNS = 16, 12, 130
# One request in so many is refused, so that failures are in the picture.
REFUSED = 40


def main(model: str, project_folder: Path) -> None:
    """Load, watch, draw."""
    project = load_project(project_folder / "tritonctl.yaml")
    state = running_server(project)
    endpoint = MetricsEndpoint(
        state.metrics_url, layout_of(project.repository), ServerUsage(state.shm_prefix)
    )
    ending = threading.Event()
    clients = [
        threading.Thread(target=ask, args=(state.grpc_url, model, ending)) for _ in range(STREAMS)
    ]
    for client in clients:
        client.start()
    watcher = MetricsWatcher(lambda: endpoint, interval=0.5, window=10)
    for _ in range(SECONDS * 2):
        sight = watcher.poll()
        ending.wait(0.5)
    ending.set()
    for client in clients:
        client.join()
    draw(sight)


def ask(url: str, model: str, ending: threading.Event) -> None:
    """One stream after the other."""
    with TritonClient(url) as client:
        while not ending.is_set():
            number = random.randrange(1_000_000)  # noqa: S311 - a prompt, not a secret
            prompt = f"{number} in English:" if number % REFUSED else ""
            try:
                client.generate(model, prompt, SamplingParameters(max_tokens=48, end_id=-1))
            except TritonctlError:
                ending.wait(0.01)  # the refused ones are part of the picture


def draw(sight: MetricsSnapshot) -> None:
    """As SVG; the text in it can be searched."""
    console = Console(file=StringIO(), record=True, width=COLUMNS, force_terminal=True)
    view = TopView()
    view.show(sight)
    console.print(view.view())
    # Without the web fonts: a picture in the documentation fetches nothing.
    picture = console.export_svg(title="tritonctl top")
    picture = re.sub(r"@font-face \{.*?\}\n", "", picture, flags=re.DOTALL)
    PICTURE.write_text(picture.replace("Fira Code, monospace", "monospace"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(*sys.argv[2:3]))
