# SPDX-License-Identifier: Apache-2.0
"""Reads the files of a repository - configurations, graphs, code - and runs nothing of them."""
