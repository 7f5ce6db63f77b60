"""`--init-from`: a run that begins with the parameters of another one."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from jaxzoo.cli.config_file import load_config
from jaxzoo.cli.flags import override
from jaxzoo.config.config_io import from_json, to_json
from jaxzoo.loading.origin import CheckpointPlace, read_origin
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.train.checkpoint import Checkpoints, restore
from jaxzoo.train.config import RunConfig
from jaxzoo.train.loop import TrainingRun
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.train.session import Session

SHORT = ("--train.steps", "3", "--train.checkpoint-every", "2", "--train.eval-every", "0")


def saved_variables(directory, step) -> dict[str, np.ndarray]:
    """Parameters and buffers of a checkpoint, by name, read by Orbax alone."""
    place = directory / "checkpoints" / str(step) / "state"
    with ocp.PyTreeCheckpointer() as reader:
        names = reader.metadata(place).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), names)
        tree = reader.restore(place, restore_args=as_numpy)
    leaves = jax.tree.leaves_with_path({name: tree.get(name) for name in ("params", "buffers")})
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def configured(file: Path, *flags: str) -> RunConfig:
    """The experiment of a config file."""
    return override(load_config(file), flags, prog="")


def make_run(config: RunConfig, directory: Path, steps=(2, 3)) -> RunDirectory:
    """A run with checkpoints of random numbers, others at each step."""
    session, run = Session(config), RunDirectory(directory)
    run.create(to_json(config), None)
    cursor = session.dataset.train().get_state()
    with jax.set_mesh(session.mesh), Checkpoints(run.checkpoints, keep=9, record=run.newest_checkpoint) as checkpoints:
        for step in steps:
            checkpoints.save(step, session.init_state(seed=70 + step), cursor=cursor, config=to_json(config))
    run.release()
    return run


@pytest.mark.slow
def test_begins_with_the_numbers_of_another_run(mqar_file, run, tmp_path, capfd):
    """Kills: parameters that are rounded, decayed or random; an optimizer, step or cursor that comes with them; a run
    that forgets where it began; another step than the one named."""
    make_run(configured(mqar_file), tmp_path / "old")
    flags = ("--init-from", f"{tmp_path / 'old'}:2", "--train.seed", "5", "--train.keep-checkpoints", "3")
    assert run(mqar_file, "new", *SHORT, *flags) == 0
    out, err = capfd.readouterr()
    assert f"begins with the parameters of step 2 of {tmp_path / 'old'}" in out
    assert err == ""
    old, new = saved_variables(tmp_path / "old", 2), saved_variables(tmp_path / "new", 0)
    assert old.keys() == new.keys()
    for name, array in old.items():
        assert array.tobytes() == new[name].tobytes(), name
    trained = saved_variables(tmp_path / "new", 2)
    assert any(array.tobytes() != trained[name].tobytes() for name, array in old.items())
    note = json.loads((tmp_path / "new" / "origin.json").read_text())
    assert (note["run"], note["step"], len(note["digest"])) == (str(tmp_path / "old"), 2, 64)
    config = from_json(json.loads((tmp_path / "new" / "config.json").read_text()), RunConfig)
    session = Session(config)
    with jax.set_mesh(session.mesh):
        state, seal = restore(tmp_path / "new" / "checkpoints" / "0", session.abstract_state)
        fresh = session.init_state()
        assert seal.cursor == session.dataset.train().get_state()
    jax.tree.map(np.testing.assert_array_equal, (state.opt_state, state.key), (fresh.opt_state, fresh.key))
    assert int(state.step) == 0


@pytest.mark.slow
def test_goes_on_without_its_source(mqar_file, run, rows, tmp_path, capfd):
    """Kills: a resume that needs the source again, or that begins with random numbers where no checkpoint was due."""
    make_run(configured(mqar_file), tmp_path / "old")
    flags = (*SHORT, "--train.checkpoint-every", "0")
    given = ("--init-from", str(tmp_path / "old"))
    assert run(mqar_file, "whole", *flags, *given) == 0

    def die(self, *_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "advance", die)
        assert run(mqar_file, "broken", *flags, *given) == 130
    assert rows("broken") == []
    shutil.rmtree(tmp_path / "old")
    assert run(mqar_file, "broken", *flags, "--resume") == 0
    assert rows("broken") == rows("whole")
    shutil.rmtree(tmp_path / "broken" / "checkpoints")
    (tmp_path / "broken" / "newest_checkpoint.json").unlink()
    capfd.readouterr()
    assert run(mqar_file, "broken", *flags, "--resume") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "was stopped before it had saved the parameters that it begins with" in line
    directory = RunDirectory(tmp_path / "broken")
    directory.create({}, None)
    directory.release()
    assert not directory.origin.exists()


@pytest.mark.full
def test_refusals_write_nothing(mqar_file, run, tmp_path, capfd):
    """Kills: a traceback of the storage layer, variables that are left random, a directory that is in the way later, a
    run that is replaced while a new one begins with it."""
    old, new, link = make_run(configured(mqar_file), tmp_path / "old").path, tmp_path / "new", tmp_path / "link"
    link.symlink_to(tmp_path)
    capfd.readouterr()
    for flags, line in [
        ((f"{old}", "--model.d-model", "16"), "variable embedding has shape (264, 8) there and (264, 16)"),
        ((f"{old}:1",), f"checkpoint 1 must be one of 2, 3, those in {old}"),
        ((f"{old}x",), f"{old}x does not exist; --init-from takes the directory of a run"),
        ((f"{old}", "--resume"), "--resume and --init-from exclude each other"),
        (("",), "--init-from must name a run"),
        ((f"{new}",), "is the run that would be replaced"),
        ((f"{link}/new",), "is the run that would be replaced"),
        ((f"{new}/model.safetensors",), "is the run that would be replaced"),
    ]:
        assert run(mqar_file, "new", *SHORT, "--init-from", *flags) == 2
        (said,) = capfd.readouterr().err.splitlines()
        assert line in said
        assert not new.exists()


@pytest.mark.full
def test_what_may_differ_and_what_is_told(mqar_file, text_file, tmp_path, capfd):
    """Kills: a run that may not be made longer or dropped out otherwise; another function, or other meanings of the
    ids, without a word."""

    def warnings(config: RunConfig, source: RunDirectory) -> list[str]:
        session = Session(config)
        capfd.readouterr()
        with jax.set_mesh(session.mesh):
            read_origin(CheckpointPlace.parse(str(source.path)), session)
        return capfd.readouterr().err.splitlines()

    old = make_run(configured(mqar_file), tmp_path / "old", steps=(3,))
    same = ("--model.max-length", "40", "--model.residual-dropout", "0.5", "--model.dtype", "bfloat16")
    assert warnings(configured(mqar_file, *same), old) == []
    model, tokens = warnings(configured(text_file, "--model.norm-eps", "1e-3"), old)
    assert model.endswith("model.norm_eps is 0.001 here and 1e-05 there, with the same variables")
    assert "trained on tokens of no tokenizer, and these are of 'bytes-257'" in tokens
    assert warnings(configured(text_file), make_run(configured(text_file), tmp_path / "text", steps=(3,))) == []


@pytest.mark.slow
def test_onto_another_mesh(tiny_config, tmp_path):
    """Kills: variables that all lie on one device, or in other shardings than the train step's."""
    eight = Session(dataclasses.replace(tiny_config, mesh=MeshConfig(data=2, fsdp=2, tensor=2)))
    with jax.set_mesh(eight.mesh):
        state = eight.init_state(seed=72)
    source = make_run(eight.config, tmp_path / "source", steps=(2,))
    four = Session(dataclasses.replace(tiny_config, mesh=MeshConfig(data=1, fsdp=4)), devices=jax.devices()[:4])
    with jax.set_mesh(four.mesh):
        origin = read_origin(CheckpointPlace.parse(str(source.path)), four)
        found = four.init_state(variables=origin.variables)
    assert jax.tree.map(lambda x: x.sharding, found) == four.state_shardings
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(found.variables), jax.device_get(state.variables))


def test_places(tmp_path):
    """Kills: a directory with a colon in its name that is cut in two."""
    (tmp_path / "a:7").mkdir()
    assert CheckpointPlace.parse(f"{tmp_path}/a:7") == (tmp_path / "a:7", None)
    assert CheckpointPlace.parse(f"{tmp_path}/a:8") == (tmp_path / "a", 8)
    assert CheckpointPlace.parse(f"{tmp_path}/a:8x") == (tmp_path / "a:8x", None)


def test_a_run_by_another_path(tmp_path):
    """Kills: a run that is replaced because it was named by a link, or by its file."""
    run, link = tmp_path / "run", tmp_path / "link"
    link.symlink_to(tmp_path)
    for text in (f"{run}", f"{run}:2", f"{link}/run", f"{tmp_path}/other/../run:best", f"{run}/model.safetensors"):
        assert CheckpointPlace.parse(text).is_of(run), text
    assert CheckpointPlace.parse(f"{link}/run").is_of(link / "run")
    assert not CheckpointPlace.parse(f"{run}/checkpoints/2").is_of(run)
    assert not CheckpointPlace.parse(f"{run}x").is_of(run)
