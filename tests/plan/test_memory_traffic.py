"""Memory traffic against counts by hand. Kills: a stack that counts whole in every layer."""

from benchmarks.op_programs import launches
from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.memory_traffic import memory_bytes

SLICED = """
%take (stack: f32[12,256], i: s32[], x: f32[256]) -> f32[256] {
  %stack = f32[12,256]{1,0} parameter(0)
  %flat = f32[12,256]{1,0} bitcast(%stack)
  %i = s32[] parameter(1)
  %x = f32[256]{0} parameter(2)
  %zero = s32[] constant(0)
  %layer = f32[1,256]{1,0} dynamic-slice(%flat, %i, %zero), dynamic_slice_sizes={1,256}
  %row = f32[256]{0} bitcast(%layer)
  ROOT %sum = f32[256]{0} add(%row, %x)
}

ENTRY %main (p: f32[12,256], j: s32[], y: f32[256]) -> f32[256] {
  %p = f32[12,256]{1,0} parameter(0)
  %j = s32[] parameter(1)
  %y = f32[256]{0} parameter(2)
  ROOT %taken = f32[256]{0} fusion(%p, %j, %y), kind=kLoop, calls=%take
}
"""
UPDATED = """
%put (stack: f32[12,256], i: s32[], x: f32[1,256]) -> f32[12,256] {
  %stack = f32[12,256]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %x = f32[1,256]{1,0} parameter(2)
  %zero = s32[] constant(0)
  %double = f32[1,256]{1,0} add(%x, %x)
  ROOT %new = f32[12,256]{1,0} dynamic-update-slice(%stack, %double, %i, %zero)
}

ENTRY %main (p: f32[12,256], j: s32[], y: f32[1,256]) -> f32[12,256] {
  %p = f32[12,256]{1,0} parameter(0)
  %j = s32[] parameter(1)
  %y = f32[1,256]{1,0} parameter(2)
  ROOT %put_in = f32[12,256]{1,0} fusion(%p, %j, %y), kind=kLoop, calls=%put
}
"""
SCATTERED = UPDATED.replace(
    "dynamic-update-slice(%stack, %double, %i, %zero)", "scatter(%stack, %i, %double), to_apply=%f"
)
WITHIN = """
%outer (stack.3: f32[12,256], i.3: s32[], x.3: f32[256], all.3: f32[12,256]) -> (f32[256], f32[12,256]) {
  %stack.3 = f32[12,256]{1,0} parameter(0)
  %i.3 = s32[] parameter(1)
  %x.3 = f32[256]{0} parameter(2)
  %all.3 = f32[12,256]{1,0} parameter(3)
  %row.3 = f32[256]{0} fusion(%stack.3, %i.3, %x.3), kind=kLoop, calls=%take
  %new.3 = f32[1,256]{1,0} bitcast(%row.3)
  %kept.3 = f32[12,256]{1,0} fusion(%all.3, %i.3, %new.3), kind=kLoop, calls=%put
  ROOT %both.3 = (f32[256]{0}, f32[12,256]{1,0}) tuple(%row.3, %kept.3)
}

ENTRY %main.3 (p: f32[12,256], j: s32[], y: f32[256], a: f32[12,256]) -> (f32[256], f32[12,256]) {
  %p = f32[12,256]{1,0} parameter(0)
  %j = s32[] parameter(1)
  %y = f32[256]{0} parameter(2)
  %a = f32[12,256]{1,0} parameter(3)
  ROOT %done = (f32[256]{0}, f32[12,256]{1,0}) fusion(%p, %j, %y, %a), kind=kOutput, calls=%outer
}
"""
WITHIN = SLICED.partition("ENTRY")[0] + UPDATED.partition("ENTRY")[0] + WITHIN
ON_CHIP = """
ENTRY %main (p: bf16[2048,2048]) -> bf16[512,2048] {
  %p = bf16[2048,2048]{1,0:T(8,128)(2,1)} parameter(0)
  %fetch = ((bf16[2048,2048]{1,0:T(8,128)(2,1)}), bf16[512,2048]{1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) slice-start(%p), slice={[0:512], [0:2048]}
  %near = bf16[512,2048]{1,0:T(8,128)(2,1)S(1)} slice-done(%fetch)
  %twice = bf16[512,2048]{1,0:T(8,128)(2,1)S(1)} add(%near, %near)
  %store = (bf16[512,2048]{1,0:T(8,128)(2,1)}, bf16[512,2048]{1,0:T(8,128)(2,1)S(1)}, u32[]{:S(2)}) copy-start(%twice)
  ROOT %stored = bf16[512,2048]{1,0:T(8,128)(2,1)} copy-done(%store)
}
"""  # noqa: E501
LOOP = """
%condition (s: (s32[], f32[64])) -> pred[] {
  %s = (s32[], f32[64]{0}) parameter(0)
  %n = s32[] constant(5)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%body (s.2: (s32[], f32[64])) -> (s32[], f32[64]) {
  %s.2 = (s32[], f32[64]{0}) parameter(0)
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  %x = f32[64]{0} get-tuple-element(%s.2), index=1
  %y = f32[64]{0} sine(%x)
  ROOT %next = (s32[], f32[64]{0}) tuple(%i.2, %y)
}

ENTRY %main (p: f32[64]) -> (s32[], f32[64]) {
  %p = f32[64]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[64]{0}) tuple(%zero, %p)
  ROOT %loop = (s32[], f32[64]{0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
}
"""  # noqa: E501
EXPECTED = {
    "sliced": (SLICED, 4 * (256 + 256 + 256) + 4),
    "updated in place": (UPDATED, 4 * (256 + 256) + 4),
    "scattered in place": (SCATTERED, 4 * (256 + 256) + 4),
    "in fusions within a fusion": (WITHIN, 4 * (256 + 256) + 4 + 4 * (256 + 256)),
    "on the chip": (ON_CHIP, 2 * 512 * 2048 * 2),
    "in a loop": (LOOP, 5 * 2 * 4 * 64 + 5 * (4 + 4 + 1)),
}


def test_by_hand():
    """Kills: stacks that count whole at every layer, arrays on the chip that count, and bodies that count once; the
    last summand of the loop is its comparison."""
    for name, (text, expected) in EXPECTED.items():
        assert memory_bytes(Hlo("HloModule step\n" + text)) == expected, name


def test_launches_by_hand():
    """Kills: a body that counts once, tuples and parameters that count, constant arrays that count."""
    filled = LOOP.replace("%y = f32[64]{0} sine(%x)", "%n.2 = f32[64]{0} iota()\n  %y = f32[64]{0} add(%x, %n.2)")
    for text in (LOOP, filled):
        assert launches(Hlo("HloModule step\n" + text)) == 5 + 5  # the sine or sum, and the comparison
