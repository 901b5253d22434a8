# SPDX-License-Identifier: Apache-2.0
"""Comparisons as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.host.version import __version__
from tritonctl.rollout.compare import VersionComparison
from tritonctl.rollout.shadow.comparison_log import ShadowCounts

_TEMPLATE = "comparison.html.j2"


def comparison_page(
    comparisons: Sequence[VersionComparison],
    *,
    title: str,
    show_texts: bool,
    counts: ShadowCounts | None = None,
) -> str:
    """Render the page; all texts are escaped.

    show_texts: include prompts and answers of the examples. counts: of the copied user requests.
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
        comparisons=comparisons, title=title, shown=show_texts, counts=counts, version=__version__
    )
