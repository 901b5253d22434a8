# SPDX-License-Identifier: Apache-2.0
"""An ensemble's graph as a picture: for a terminal, as Mermaid, Graphviz or JSON."""
