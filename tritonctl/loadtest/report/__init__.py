# SPDX-License-Identifier: Apache-2.0
"""The report of a load test: text, CSV and one HTML page."""
