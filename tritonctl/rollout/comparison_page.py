# SPDX-License-Identifier: Apache-2.0
"""A comparison as one HTML file that needs nothing else and asks nobody."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tritonctl.host.version import __version__
from tritonctl.rollout.compare import Comparison

_TEMPLATE = "comparison.html.j2"


def comparison_page(comparison: Comparison, *, shown: bool) -> str:
    """The page. shown: the examples have their prompts and texts, which are escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(_TEMPLATE).render(
        c=comparison, shown=shown, version=__version__
    )
