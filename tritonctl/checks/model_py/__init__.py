# SPDX-License-Identifier: Apache-2.0
"""Read a model.py as a syntax tree without running it."""
