# SPDX-License-Identifier: Apache-2.0
"""Watch one tritonserver: start, readiness, restarts, clean-up. Standard library only."""
