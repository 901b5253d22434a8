# SPDX-License-Identifier: Apache-2.0
"""Count a request's tokens before a replica is chosen."""
