"""The stand-in for cuDNN. Kills: a stand-in that stays after a plan."""

from jaxzoo.plan import cudnn
from pallas_kernels.sliding_window.api import OP


def test_tables_change_with_the_stand_in():
    """Kills: a plan that calls cuDNN, which is absent, and a program after a plan that calls the stand-in."""
    before = OP.table("xla")["cudnn"].target_objection
    with cudnn.stand_in("cuda"):
        assert OP.backends["cudnn"].forward is cudnn._forward
        assert OP.table("xla")["cudnn"].target_objection is cudnn._objection
    assert OP.table("xla")["cudnn"].target_objection is before
    assert before is not cudnn._objection
