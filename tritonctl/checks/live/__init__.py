# SPDX-License-Identifier: Apache-2.0
"""What a running server does otherwise than its repository says, and what it shows to strangers."""
