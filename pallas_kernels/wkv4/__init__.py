"""wkv4: the weighted key-value mean of RWKV-4, a recurrence of two sums per channel."""

from pallas_kernels.wkv4.api import IMPLEMENTATIONS, sharded_wkv4, wkv4
from pallas_kernels.wkv4.state import Wkv4State, empty_state

__all__ = ["IMPLEMENTATIONS", "Wkv4State", "empty_state", "sharded_wkv4", "wkv4"]
