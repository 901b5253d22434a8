# SPDX-License-Identifier: Apache-2.0
"""Releases: numbered, immutable copies of a rendered repository."""
