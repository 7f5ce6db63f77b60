"""The command at its smallest protocol, with mixers of a file outside of the package."""

import dataclasses
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxzoo.bench.protocol import SMOKE, TASKS, V1, OneShapeConfig
from jaxzoo.bench.rows import read_row, write_row
from jaxzoo.bench.sizes import check_state, sized_mixers
from jaxzoo.cli.bench import main
from jaxzoo.config.config_io import to_json
from jaxzoo.data.base import UNLABELLED
from jaxzoo.mixers import MIXERS, Capabilities, LinearAttentionConfig, Mixer, MixerConfig
from jaxzoo.mixers.base import NO_CONTEXT
from tests.bench.test_rows import made_up_row

pytestmark = pytest.mark.full

PAGE = (Path(__file__).parents[2] / "docs" / "recall_per_byte.md").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Current folder with the mixer of the documentation."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "soft_slots.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_mixer_of_a_file_gets_a_row(folder, capsys):
    """Kills: a registry that outsiders cannot pass, runs that differ from one call to the next, finished runs that are
    trained again, a page without the kept rows."""
    command = ["--mixer", "soft_slots.py:SoftSlots", "--protocol", "smoke"]
    assert main([*command, "--out", "rows"]) == 0, capsys.readouterr().err
    first = read_row(folder / "rows/SoftSlots.json")
    assert [(cell.task, cell.size) for cell in first.cells] == SMOKE.cells(SMOKE.sizes)
    (folder / "rows/SoftSlots.json").rename(folder / "rows/other.json")

    assert main([*command, "--out", "again"]) == 0
    again = read_row(folder / "again/SoftSlots.json")
    assert again.cells == first.cells

    capsys.readouterr()
    assert main([*command, "--out", "again", "--rows", "rows"]) == 0
    out = capsys.readouterr().out
    assert "runs\n" not in out
    assert main(["--check", "again/SoftSlots.json"]) == 0
    text = (folder / "again/page.md").read_text()
    assert text.count("| SoftSlots | ") == len(first.cells)
    assert "Not run yet: attention, " in text


def test_mixers_without_a_row_are_listed(folder, capsys):
    """Kills: a list that hides what was not run."""
    assert main(["--list", "--rows", "none"]) == 0
    out = capsys.readouterr().out
    assert "protocol v1\nrows: none\nnot run yet: attention, " in out
    assert main([]) == 2
    assert "--mixer NAME is required" in capsys.readouterr().err
    assert main(["--mixer", "attention", "--protocol", "v0"]) == 2
    assert "protocol='v0' must be one of v1, smoke" in capsys.readouterr().err


def test_sizes_of_a_registered_mixer_are_measured_again(tmp_path, capsys):
    """Kills: sizes in a row that were never measured, or were measured before the mixer changed."""
    row = made_up_row("linear_attention", mixer=to_json(LinearAttentionConfig(feature_dim=15, head_dim=15)))
    write_row(tmp_path / "row.json", row)
    assert main(["--check", str(tmp_path / "row.json")]) == 2
    assert "linear_attention: state_bytes=1064 must be 960, as measured" in capsys.readouterr().err


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetfulConfig(MixerConfig):
    """A mixer whose call is a sum over all tokens, and whose steps keep this sum somewhere."""

    kept: str = "state"

    @classmethod
    def tiny(cls):
        return cls(d_model=4)

    def flops_per_token(self, length):
        return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StatelessConfig(ForgetfulConfig):
    promises = Capabilities(streams=False)


class Forgetful(Mixer):
    config: ForgetfulConfig

    def __init__(self, config, *, rngs):
        self.config = config
        self.total = 0.0

    def __call__(self, x, context=NO_CONTEXT):
        return jnp.cumsum(x, 1)

    def init_state(self, batch_size, *, capacity=None, dtype=jnp.float32):
        return (jnp.zeros((batch_size, self.config.width)),)

    def step(self, x_t, state, context=NO_CONTEXT):
        if self.config.kept == "state":
            return state[0] + x_t, (state[0] + x_t,)
        if self.config.kept == "attribute":
            self.total = self.total + x_t
            return self.total, state
        return x_t, state


@pytest.mark.parametrize("kept", ["state", "attribute", "nowhere"])
def test_what_a_mixer_remembers_is_in_its_state(kept):
    """Kills: a check that runs steps one by one, where a Python attribute can carry what the state should; a check of
    `tiny()` alone, whose config is another one than that of the row."""
    mixers = sized_mixers(ForgetfulConfig(kept=kept), SMOKE)
    assert [(size, mixer.state_bytes) for size, mixer in mixers.items()] == [(64, 64)]
    if kept == "state":
        check_state(mixers[64].config, SMOKE.model)
        return
    with pytest.raises(
        ValueError, match=r"Forgetful: (compiled steps fail|outputs of 32 steps from init_state differ)"
    ):
        check_state(mixers[64].config, SMOKE.model)


def test_sizes_are_those_of_the_arrays():
    """Kills: a size by a formula, a size beyond the tolerance, a mixer of fixed size that gets no row."""
    sizes = {size: mixer.state_bytes for size, mixer in sized_mixers(LinearAttentionConfig(), V1).items()}
    assert sizes.keys() == {1024, 4096, 16384}
    assert all(V1.fits(found, size) for size, found in sizes.items())
    (own,) = sized_mixers(MIXERS["hyena"](), V1)
    assert not any(V1.fits(own, size) for size in V1.sizes)
    with pytest.raises(ValueError, match=r"capabilities=.* must stream"):
        sized_mixers(StatelessConfig(), V1)


@pytest.mark.parametrize("task", TASKS)
def test_all_tasks_have_one_shape(task):
    """Kills: questions that are cut off or asked twice, padding that is learned, track asked within its trained length,
    a task that needs a program of its own."""
    assert sum(examples.n_examples for examples in V1.data(task).train) >= V1.steps * V1.batch_size
    assert len(V1.data(task).valid) == len(V1.asked(task))
    numbers = jnp.arange(SMOKE.batch_size)
    for examples, number in zip(SMOKE.data(task).valid, SMOKE.asked(task), strict=True):
        assert isinstance(examples.task, OneShapeConfig)
        batch = examples.task.labelled(0, numbers, "test")
        assert (batch.tokens.shape, batch.targets.shape) == ((8, SMOKE.length), (8, 8))
        inner = examples.task.task.labelled(0, numbers, "test")
        n = SMOKE.n_asked(number)
        assert (batch.targets[:, :n] == inner.targets[:, -n:]).all()
        assert (batch.positions[:, :n] == inner.positions[:, -n:]).all()
        assert (batch.targets[:, n:] == UNLABELLED).all()
        assert (batch.tokens[:, : inner.tokens.shape[1]] == inner.tokens).all()
    if task == "track":
        assert jax.device_get(batch.positions).min() > SMOKE.track_lengths[0]
