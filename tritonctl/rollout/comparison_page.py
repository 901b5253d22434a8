# SPDX-License-Identifier: Apache-2.0
"""Comparisons as one HTML file that needs nothing else and asks nobody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.host.version import __version__
from tritonctl.rollout.compare import Comparison
from tritonctl.rollout.shadow.found import Counts

_TEMPLATE = "comparison.html.j2"


def comparison_page(
    comparisons: Sequence[Comparison], *, title: str, shown: bool, counts: Counts | None = None
) -> str:
    """The page. shown: the examples have their prompts and texts, which are escaped.

    counts: of the copies of requests, where they came from users.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(
        comparisons=comparisons, title=title, shown=shown, counts=counts, version=__version__
    )
