"""`--profile`: which steps are traced, and what is refused in one line."""

import contextlib

import jax
import jax.numpy as jnp
import pytest

from jaxzoo.train.profiling import check_ahead, parse_steps, profiler
from tests.train.traces import steps_of_trace


@pytest.mark.full
def test_a_run_that_ends_early_leaves_its_trace(tmp_path):
    """Kills: a trace that is lost, or goes on, when a signal ends the run between its first step and its last; steps
    before the first among the traced."""
    said, double = [], jax.jit(lambda x: 2 * x)
    with profiler(range(2, 9), tmp_path, said.append, contextlib.nullcontext) as around:
        for step in (1, 2, 3):
            with around(step, lambda: None):
                double(jnp.float32(step))
    (file,) = tmp_path.rglob("perfetto_trace.json.gz")
    assert said == [f"trace of steps 2 to 3: {file}; open it at https://ui.perfetto.dev"]
    assert steps_of_trace(file) == [2, 3]
    with profiler(None, tmp_path / "none", said.append, contextlib.nullcontext) as around, around(1, lambda: None):
        pass
    assert len(said) == 1


def test_a_resumed_run_cannot_trace_what_is_behind_it():
    """Kills: a resumed run that ends without the trace that was asked for."""
    check_ahead(None, 4)
    check_ahead(range(5, 6), 4)
    with pytest.raises(ValueError, match=r"^--profile 4:9 must name steps after 4, from where the run goes on$"):
        check_ahead(range(4, 9), 4)


def test_what_is_no_range_of_steps_is_refused():
    """Kills: a traceback of int(), a run that ends without the trace that was asked for."""
    for text in ("3", "3:", ":3", "a:b", "-1:2", "1.5:2", "², :3", "1:2:3"):
        with pytest.raises(ValueError, match="must be START:STOP, such as 10:13"):
            parse_steps(text, 9)
    for text in ("0:2", "3:3", "4:3", "9:11"):
        with pytest.raises(
            ValueError, match=rf"^--profile {text} must name steps from 1 to 9, with START before STOP$"
        ):
            parse_steps(text, 9)
    assert parse_steps("9:10", 9) == range(9, 10)
