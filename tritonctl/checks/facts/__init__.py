# SPDX-License-Identifier: Apache-2.0
"""What rules want to know of models: worked out of what the files say, and shared."""
