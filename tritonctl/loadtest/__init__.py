# SPDX-License-Identifier: Apache-2.0
"""Load tests: run, measure, judge, compare."""
