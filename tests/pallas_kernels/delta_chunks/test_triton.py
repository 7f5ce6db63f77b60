"""The Triton kernels of the recurrence over chunks, interpreted, against float64, on the op's own cases."""

import pytest

from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.slow
def test_all_cases():
    """Kills: a reverse scan that does not transpose mix, a state saved after its chunk, a wrong row or value block."""
    check_interpreted("delta_chunks")
