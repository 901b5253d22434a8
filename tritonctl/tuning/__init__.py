# SPDX-License-Identifier: Apache-2.0
"""Finds the settings with the highest rate that an SLO allows: docs/explanation/tuning.md."""
