# SPDX-License-Identifier: Apache-2.0
"""`tritonctl init`: a short, working project file for a checkpoint."""
