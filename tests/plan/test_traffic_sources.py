"""Memory traffic by source line. Kills: a helper that is named in place of its caller."""

import jax
import jax.numpy as jnp

from jaxzoo.plan.hlo import Hlo
from jaxzoo.plan.traffic_sources import UNKNOWN, read_sources, sources_table

PROGRAM = """HloModule step

FileNames
1 "/home/x/jaxzoo/jaxzoo/train/step.py"
2 "/home/x/jaxzoo/jaxzoo/layers/mlp.py"
3 "/home/x/jaxzoo/jaxzoo/layers/linear.py"
4 "/usr/lib/python3.12/site-packages/jax/_src/numpy.py"
5 "/home/x/mine/mixer.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=0 end_column=0}
2 {file_name_id=2 function_name_id=1 line=8 end_line=8 column=0 end_column=0}
3 {file_name_id=3 function_name_id=1 line=9 end_line=9 column=0 end_column=0}
4 {file_name_id=4 function_name_id=1 line=9 end_line=9 column=0 end_column=0}
5 {file_name_id=5 function_name_id=1 line=9 end_line=9 column=0 end_column=0}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=4 parent_frame_id=4}
5 {file_location_id=5 parent_frame_id=2}

ENTRY %main (p: f32[1000]) -> f32[1000] {
  %p = f32[1000]{0} parameter(0)
  %a = f32[1000]{0} add(%p, %p), metadata={op_name="jit(step)/jvp()/add" stack_frame_id=4}
  %b = f32[1000]{0} negate(%a), metadata={op_name="jit()/transpose(jvp())/rematted_computation/neg" stack_frame_id=3}
  %c = f32[1000]{0} negate(%b), metadata={op_name="jit(step)/transpose(jvp())/neg" stack_frame_id=5}
  ROOT %d = f32[1000]{0} copy(%c)
}
"""


def test_by_hand():
    """Kills: a helper or a library that is named instead of its caller, a caller of the wrong frame, a wrong pass."""
    found = {source.file: source for source in read_sources(PROGRAM, Hlo(PROGRAM))}
    assert found["jaxzoo/layers/mlp.py"].bytes == {"forward": 12_000, "again": 8_000}
    assert found["jaxzoo/layers/mlp.py"].launches == 2
    assert found["/home/x/mine/mixer.py"].bytes == {"backward": 8_000}
    assert found[UNKNOWN].bytes == {"other": 8_000}
    first, mlp, rest = sources_table(list(found.values()), 1).splitlines()
    assert first.split()[-7:] == ["file", "forward", "again", "backward", "other", "all", "launches"]
    assert mlp.split() == ["jaxzoo/layers/mlp.py", "0.0", "0.0", "0.0", "2"]
    assert rest.split() == ["2", "more", "0.0", "0.0", "0.0", "2"]


def test_of_a_compiled_program():
    """Kills: a format of the tables that JAX does not write (any more)."""
    text = jax.jit(lambda x: jnp.tanh(x) @ x).lower(jnp.ones((64, 64))).compile().as_text() or ""
    assert [source.file for source in read_sources(text, Hlo(text)) if source.file.endswith("test_traffic_sources.py")]
