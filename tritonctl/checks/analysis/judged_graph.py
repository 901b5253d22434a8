# SPDX-License-Identifier: Apache-2.0
"""The graph in a model's file, where its backend holds the configuration against it."""

from __future__ import annotations

from tritonctl.checks.repository import Model
from tritonctl.formats.graph_file import Graph


def judged_graph(model: Model) -> Graph | None:
    """The graph, where the backend holds the configuration against it.

    It completes a configuration that lacks its inputs or its outputs instead.
    """
    graph, config = model.graph, model.config
    if graph is None or graph.broken:
        return None
    has_inputs = config.message.input or config.message.batch_input
    return graph if has_inputs and config.message.output else None
