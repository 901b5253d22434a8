# SPDX-License-Identifier: Apache-2.0
"""How many tokens a request has, before a replica is chosen for it."""
