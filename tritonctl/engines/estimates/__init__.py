# SPDX-License-Identifier: Apache-2.0
"""How much memory and disk an engine takes: formulas over the headers of a checkpoint or graph."""
