# SPDX-License-Identifier: Apache-2.0
"""Compare a running server with its repository, and find services open to unauthorised clients."""
