# SPDX-License-Identifier: Apache-2.0
"""Route requests to replicas by load and health."""
