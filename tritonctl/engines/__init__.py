# SPDX-License-Identifier: Apache-2.0
"""From a checkpoint to an engine with a manifest; the building itself runs in a builder process."""
