# SPDX-License-Identifier: Apache-2.0
"""A report as text, JSON, GitHub annotations or SARIF, and the rules as pages."""
