# SPDX-License-Identifier: Apache-2.0
"""Who may reach a server, by what, and whether what it serves is what was built."""
