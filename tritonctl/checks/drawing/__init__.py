# SPDX-License-Identifier: Apache-2.0
"""Draw an ensemble's graph for a terminal, or as Mermaid, Graphviz or JSON."""
