"""libtpu's text is read as it is meant: loops, trips, slots, rows."""

import pytest

from pallas_kernels.compile_check.bundles import read_schedule, read_schedules
from pallas_kernels.compile_check.targets import TARGETS

BUNDLES = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %s1_s0 = inlined_call_operand.hbm [shape: bf16[4,8]] }
   0x1   :  { %11 = vsyncpa [#allocation6], 0 } /* Start region 1 */
   0x2 LB: > { %s31_s7 = sadd.s32 4294967295, %s30 /* iteration index */ }
   0x3   : > { %5704 = vmatmul.bf16.vlgmr.msra.gmra.mxu1 %v24 ;;  %5705 = vmatmul.bf16.gmra.mxu0 %v25 }
   0x4 LB: >> { %s40 = sphi 0, %s41 }
   0x5   : >> { %57 = vmatmul.mubr.f32.gmra.mxu0 %v1 ;;  %58 = vpop.f32.mrf.mxu0 }
   0x6   : >> { %p1 = scmp.ge.s32.totalorder %s41, 3 /* loop exit test */ }
   0x7   :  { %40 = sbr.rel (!%p1) target = $region9 }
   0x8   : >> { %s42 = smov %s41 }
   0x9 PF: > { %p24_p9 = scmp.ge.s32.totalorder %s27_s30, 258 /* loop exit test */ }
   0xa   :  { %26 = sbr.rel (!%p24_p9) target = $region136 }
   0xb   : > { %s66 = smov %s43 } /* End region 3 */
   0xc   :  { %67 = vsyncpa [#allocation6], 1 } /* End region 4 */
"""
UTILIZATION = """\
== CAPACTIY:
MXU, VLOAD, VLOAD:FILL, VSTORE, VSTORE:SPILL
    4     2     2     1     1
== UTILIZATION:
""" + "\n".join(
    ["4 2 2 1 1"] * 2 + ["0 0 0 0 0", "2 0 0 0 0", "0 2 1 0 0", "1 0 0 1 1", "0 0 0 0 0", "0 0 0 0 0", "0 0 0 0 0"]
    + ["0 0 0 0 0"] * 3 + ["4 2 2 1 1"]
)  # fmt: skip


def test_a_step():
    """Kills inner loops counted once, bundles around the grid's loop counted in, and the exit's own bundle left out."""
    schedule = read_schedule(BUNDLES, UTILIZATION)
    # 0x2, 0x3, three times 0x4 to 0x8, 0x9, 0xa, 0xb
    assert (schedule.bundles, schedule.steps, schedule.unknown_trips) == (2 + 3 * 5 + 3, 258, 0)
    assert schedule.rows == 2 * 16 + 3 * 8
    limits = schedule.limits(TARGETS["v5e"])
    assert limits["issue"] == pytest.approx(20 * 258 / 1500)
    assert limits["matmuls"] == pytest.approx(2 * 56 * 258 * 128**2 / 197e6)


@pytest.mark.full
def test_a_bound_that_is_no_number():
    """Kills a loop whose trips are unknown and that passes for one that runs once."""
    schedule = read_schedule(BUNDLES.replace("%s41, 3 /*", "%s41, %s9 /*"), UTILIZATION)
    assert (schedule.bundles, schedule.unknown_trips) == (10, 1)


@pytest.mark.full
def test_files(tmp_path):
    """Kills schedules of what is no kernel, and a kernel with the slots of another whose name it begins with."""
    for name, use in (("a.1", UTILIZATION), ("a.10", UTILIZATION.replace("2 0 0 0 0", "0 0 0 0 0"))):
        (tmp_path / f"17953-{name}-02-final_bundles.txt").write_text(BUNDLES)
        (tmp_path / f"17953-{name}-01-schedule-analysis_final_bundles.txt").write_text("Schedule analysis:")
        (tmp_path / f"17953-{name}-00-final_hlo-static-per-bundle-utilization.txt").write_text(use)
    (tmp_path / "17953-<late-finalization>-02-final_bundles.txt").write_text(BUNDLES)
    found = read_schedules(tmp_path)
    assert sorted(found) == ["a.1", "a.10"]
    assert found["a.1"].units["MXU"] > found["a.10"].units["MXU"]
