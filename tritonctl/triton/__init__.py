# SPDX-License-Identifier: Apache-2.0
"""Everything Triton: its configuration, its repository, its process, its protocol."""
