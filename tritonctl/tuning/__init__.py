# SPDX-License-Identifier: Apache-2.0
"""Finds the server settings with the highest rate that a model's SLO allows: docs/tuning.md."""
