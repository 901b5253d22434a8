# SPDX-License-Identifier: Apache-2.0
"""Memory and disk estimates of engines: formulas over the headers of a checkpoint or graph."""
