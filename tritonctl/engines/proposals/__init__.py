# SPDX-License-Identifier: Apache-2.0
"""What `tritonctl init` proposes for a checkpoint: a short project file that works."""
