# SPDX-License-Identifier: Apache-2.0
"""Analyses that several rules share: graphs, placement, streams, threads and memory."""
