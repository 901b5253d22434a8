# SPDX-License-Identifier: Apache-2.0
"""Releases: what was rendered, under a number, for good."""
