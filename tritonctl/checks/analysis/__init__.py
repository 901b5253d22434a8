# SPDX-License-Identifier: Apache-2.0
"""What rules share: graphs, placement, streams, threads and memory, derived from the files."""
