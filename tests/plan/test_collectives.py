"""Collectives of compiled programs. Kills: a loop body that counts once, a wrong group."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

from jaxzoo.plan.collectives import device_groups, read_traffic
from jaxzoo.plan.hlo import Hlo

MESH = {"data": 2, "fsdp": 4}


def every_kind(x, w):
    """x: (4, 16) and w: (16, 16) on a device, float32."""

    def body(c, _):
        c = jax.lax.psum(c, "fsdp") * 0.1
        return jax.lax.ppermute(c, "data", [(0, 1), (1, 0)]), None

    x, _ = jax.lax.scan(body, x, None, length=12)
    gathered = jax.lax.all_gather(w, "fsdp", tiled=True)
    scattered = jax.lax.psum_scatter(gathered * 2, "data", tiled=True)
    return x, jax.lax.all_to_all(scattered, "fsdp", 0, 0, tiled=True), jax.lax.pmax(w, ("data", "fsdp"))


def compiled_text():
    mesh = jax.make_mesh((2, 4), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    specs = (P("data", "fsdp"), P("fsdp"))
    outs = (P("data", "fsdp"), P(("fsdp", "data")), P())
    function = jax.shard_map(every_kind, mesh=mesh, in_specs=specs, out_specs=outs, check_vma=False)
    return jax.jit(function).lower(jnp.ones((8, 64)), jnp.ones((64, 16))).compile().as_text()


@pytest.mark.full
def test_every_kind_by_hand():
    """Kills: a loop's body that counts once, and wrong ring formulas, operands or axes."""
    hlo = Hlo(compiled_text())
    found = {(t.kind, t.axes): (t.count, t.operands, t.wire) for t in read_traffic(hlo, MESH)}
    assert found == {
        ("all-reduce", ("fsdp",)): (12, 12 * 256, 12 * 2 * 3 / 4 * 256),
        ("collective-permute", ("data",)): (12, 12 * 256, 12 * 256),
        ("all-gather", ("fsdp",)): (1, 1024, 3 * 1024),
        ("reduce-scatter", ("data",)): (1, 4096, 4096 / 2),
        ("all-to-all", ("fsdp",)): (1, 2048, 3 / 4 * 2048),
        ("all-reduce", ("data", "fsdp")): (1, 1024, 2 * 7 / 8 * 1024),
    }
    assert hlo.open_loops == 0


PROGRAM = """HloModule step

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%wrapped (q: f32[8]) -> f32[4] {
  %q = f32[8]{0} parameter(0)
  ROOT %rs = f32[4]{0} reduce-scatter(%q), channel_id=4, replica_groups={{0,4},{1,5},{2,6},{3,7}}, dimensions={0}, to_apply=%add
}

ENTRY %main (p: f32[8], r: bf16[2,8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %r = bf16[2,8]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %gather = ((f32[8]{0}, bf16[2,8]{1,0}), (f32[32]{0}, bf16[8,8]{1,0})) all-gather-start(%p, %r), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}, backend_config={"is_sync":false}
  %gathered = (f32[32]{0}, bf16[8,8]{1,0}) all-gather-done(%gather)
  %async = ((f32[8]{0}), f32[4]{0}, u32[]) async-start(%p), calls=%wrapped
  %awaited = f32[4]{0} async-done(%async), calls=%wrapped
  %pass = (f32[8]{0}, f32[8]{0}) collective-permute-start(%p), channel_id=2, source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
  %passed = f32[8]{0} collective-permute-done(%pass)
  ROOT %all = f32[8]{0} all-reduce(%passed), channel_id=3, replica_groups={}, to_apply=%add
}
"""  # noqa: E501


def test_asynchronous_pairs_count_once():
    """Kills: a -done that counts as well, results of a -start taken for its operands, and layouts with parentheses."""
    found = {t.kind: (t.axes, t.count, t.operands, t.wire) for t in read_traffic(Hlo(PROGRAM), MESH)}
    assert found == {
        "all-gather": (("fsdp",), 1, 32 + 32, 3 * 64),
        "reduce-scatter": (("data",), 1, 32, 16),
        "collective-permute": (("fsdp",), 1, 32, 32),
        "all-reduce": (("data", "fsdp"), 1, 32, 2 * 7 / 8 * 32),
    }


TPU = """HloModule step

%begin (p.1: f32[4]) -> (f32[4], f32[16]) {
  %p.1 = f32[4]{0} parameter(0)
  %ag.1 = f32[16]{0} all-gather(%p.1), channel_id=9, replica_groups=mesh['axis_0'=4] {'axis_0'}, dimensions={0}
  ROOT %started = (f32[4]{0}, f32[16]{0}) custom-call(%ag.1), custom_call_target="AsyncCollectiveStart"
}

%go_on (p.2: f32[4], x: f32[4]) -> f32[4] {
  %p.2 = f32[4]{0} parameter(0)
  %x = f32[4]{0} parameter(1)
  %ag.2 = f32[16]{0} all-gather(%p.2), channel_id=9, replica_groups=mesh['axis_0'=4] {'axis_0'}, dimensions={0}
  ROOT %work = f32[4]{0} add(%x, %x)
}

%condition (s.1: (s32[], f32[4])) -> pred[] {
  %bound = s32[]{:T(128)} constant(6)
  %s.1 = (s32[]{:T(128)}, f32[4]{0}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%s.1), index=0
  ROOT %less = pred[] compare(%i.1, %bound), direction=LT
}

%body (s.2: (s32[], f32[4])) -> (s32[], f32[4]) {
  %s.2 = (s32[], f32[4]{0}) parameter(0)
  %c = f32[4]{0} get-tuple-element(%s.2), index=1
  %fused = f32[4]{0} fusion(%c, %c), kind=kLoop, calls=%go_on
  %sent = f32[4]{0} collective-permute(%fused), channel_id=10, source_target_pairs={{0,1},{1,0}}
  %i.2 = s32[] get-tuple-element(%s.2), index=0
  ROOT %next = (s32[], f32[4]{0}) tuple(%i.2, %sent)
}

ENTRY %main (p: f32[4]) -> (s32[], f32[4]) {
  %p = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %first = (f32[4]{0}, f32[16]{0}) fusion(%p), kind=kCustom, calls=%begin
  %start = (s32[], f32[4]{0}) tuple(%zero, %p)
  ROOT %loop = (s32[], f32[4]{0}) while(%start), condition=%condition, body=%body
}
"""


def test_collective_that_goes_on_in_other_fusions():
    """A TPU spreads one all-gather over many fusions, and does not print trip counts. Kills counting it in each, and
    bodies that count once."""
    found = {t.kind: (t.count, t.wire) for t in read_traffic(Hlo(TPU), {"data": 1, "fsdp": 4})}
    assert found == {"all-gather": (1, 3 * 16), "collective-permute": (6, 6 * 16)}


GROUPS = {
    "replica_groups={{0,4},{1,5},{2,6},{3,7}}": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "replica_groups=[4,2]<=[8]": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "replica_groups=[4,2]<=[2,4]T(1,0)": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "replica_groups=[2,4]<=[2,2,2]T(0,2,1)": [[0, 2, 1, 3], [4, 6, 5, 7]],
    "replica_groups=mesh['data'=2,'fsdp'=4] {'data'}": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "replica_groups=mesh['a'=8] {'a':(1)2}": [[0, 4], [1, 5], [2, 6], [3, 7]],
    "replica_groups=mesh['a'=8] {'a':(2)4}": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "replica_groups={}": [[0, 1, 2, 3, 4, 5, 6, 7]],
}


def test_notations_of_groups():
    """Kills: a transpose or a part of an axis that is read the wrong way round."""
    for notation, expected in GROUPS.items():
        groups = device_groups(f", channel_id=1, {notation}, dimensions={{0}}", 8)
        assert sorted(map(sorted, groups.tolist())) == sorted(map(sorted, expected)), notation
