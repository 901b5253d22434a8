# SPDX-License-Identifier: Apache-2.0
"""From records to a summary: percentiles, intervals, SLO, capacity, comparison."""
