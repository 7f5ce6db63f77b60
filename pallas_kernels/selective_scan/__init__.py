"""Selective scan: the diagonal recurrence of Mamba, whose step, input and output maps depend on the token."""

from pallas_kernels.selective_scan.api import IMPLEMENTATIONS, selective_scan, sharded_selective_scan

__all__ = ["IMPLEMENTATIONS", "selective_scan", "sharded_selective_scan"]
