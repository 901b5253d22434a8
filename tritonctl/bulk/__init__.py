# SPDX-License-Identifier: Apache-2.0
"""Files of any number of lines through a model: each line in has exactly one line out."""
