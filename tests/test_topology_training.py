"""Training steps compiled for eight absent chips. Kills: a kernel that is missing on a mesh."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from jaxzoo.mixers import SlidingWindowAttentionConfig, TaylorLinearAttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.parallel.sharding import MeshConfig
from jaxzoo.tasks.mqar import MQARConfig
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig, TrainConfig
from jaxzoo.train.session import Session
from pallas_kernels.compile_check.compiler_text import read_program
from tests.pallas_kernels.aot import absent_devices

pytestmark = pytest.mark.full

ROWS, LENGTH, WIDTH = 16, 256, 128
TASK = MQARConfig(vocab_size=512, length=LENGTH, n_pairs=8)
CONFIG = RunConfig(
    model=LanguageModelConfig(
        pattern=(
            TaylorLinearAttentionConfig(n_heads=4, feature_dim=16, head_dim=64),
            SlidingWindowAttentionConfig(n_heads=4, n_kv_heads=2, head_dim=64, window=64),
        ),
        n_layers=6, d_model=WIDTH, vocab_size=512, max_length=LENGTH, dtype="bfloat16",
    ),
    data=RecallDataConfig(
        train=(Examples(task=TASK, n_examples=64),), valid=(Examples(task=TASK, n_examples=16),)
    ),
    train=TrainConfig(steps=2, batch_size=ROWS, valid_batch_size=ROWS),
    mesh=MeshConfig(data=2, fsdp=2, tensor=2),
)  # fmt: skip
KERNELS = {"h100": {"mosaic_gpu"}, "v5e": {"mosaic_tpu", "splash_tpu"}}


@pytest.mark.parametrize(
    ("name", "remat"),
    [
        ("v5e", "nothing"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("h100", "nothing"), ("v5e", "everything"))),
    ],
)
def test_training_step(name, remat, monkeypatch):
    """Kills: kernels that are not chosen on a mesh or under remat, tables of a kernel allocated on absent devices, and
    activations that are gathered around a kernel."""
    target = absent_devices(name, monkeypatch)
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, remat=remat))
    session = Session(config, devices=target.devices(8))
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), next(session.dataset.train()))
    with jax.set_mesh(session.mesh):
        text = session.train_step.lower(session.abstract_state, batch, target.platform).compile().as_text()
    kernels = read_program(text, {})
    assert {kernel.implementation for kernel in kernels} == KERNELS[name]
    # forward, dq, dk and dv of both, but a window's gradients in one on Hopper; grouped heads take splash attention on
    # a TPU
    assert len(kernels) >= (5 if name == "h100" else 6)
    gathered = re.findall(r"\[([\d,]+)\]\S*\)? all-gather(?:-start)?\(.*op_name=\"\S*while/body", text)
    assert gathered  # parameters of the layers, by fsdp
    tokens_of_a_device = ROWS // 4 * LENGTH * WIDTH
    assert max(int(np.prod([int(n) for n in size.split(",")])) for size in gathered) < tokens_of_a_device
