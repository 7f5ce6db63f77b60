"""The Triton kernels of the UT transform, interpreted, against float64, on the op's own cases.

Kills: a block of the inverse in the wrong place or with the wrong sign; beta of a column in place of a row; decays from
the wrong border of a block; a gradient of a decay between two blocks that is lost or counted twice; memory that no
kernel writes.
"""

import pytest

from tests.pallas_kernels.triton_cases import check_interpreted


@pytest.mark.full
def test_one_chunk():
    """Kills most of the above, with decays per token."""
    check_interpreted("ut_transform", "t64_b1_h1_k64_token_float32")


@pytest.mark.slow
def test_all_cases():
    check_interpreted("ut_transform")
