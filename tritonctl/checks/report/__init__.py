# SPDX-License-Identifier: Apache-2.0
"""Render a report as text, JSON, GitHub annotations or SARIF, and the rules as pages."""
