"""residual_norm: addition to the residual stream and the norm of the sum."""

from pallas_kernels.residual_norm.api import IMPLEMENTATIONS, residual_norm, sharded_residual_norm

__all__ = ["IMPLEMENTATIONS", "residual_norm", "sharded_residual_norm"]
