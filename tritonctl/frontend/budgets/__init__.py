# SPDX-License-Identifier: Apache-2.0
"""Who asks, and how much of what they may have is left: tenants, their ledger, admission."""
