"""Mesh, data and compiled steps of a run; nothing here is written to disk.

A `Program` is all of it but the data.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxzoo.config.config_io import to_json
from jaxzoo.data.base import Batch, Dataset, Stream
from jaxzoo.models.adapters import AdaptedBlueprint, Lora, adapt
from jaxzoo.models.blueprint import Blueprint, Variables, make_blueprint
from jaxzoo.parallel.rows import place_rows, rows_of_process
from jaxzoo.parallel.sharding import RULES, make_mesh, row_devices
from jaxzoo.train.checkpoint import Checkpoints
from jaxzoo.train.checks import check_adapters, check_batch_size, check_session
from jaxzoo.train.config import RunConfig
from jaxzoo.train.optimizer import make_optimizer, make_schedule
from jaxzoo.train.state import TrainState, first_state, init_state, state_shardings
from jaxzoo.train.step import Metrics, make_train_step
from pallas_kernels import certificates
from pallas_kernels.dispatch import lowering_for


@dataclasses.dataclass
class ResumePoint:
    """State and stream with which training begins."""

    state: TrainState
    """The state, which training donates."""
    stream: Stream
    """Training batches from there on."""
    step: int = 0
    """Updates that `state` has seen."""
    n_rows: int = 0
    """Rows of metrics up to `step`, when it was saved."""
    is_given: bool = False
    """Whether `state` holds the parameters of another run: it is saved before the first update."""


class CompiledStep:
    """A jitted function of (state or variables, batch or batches), compiled ahead of time once per shape of batch.

    The shape of a batch: which fields it has, and their shapes and dtypes. `kernels`: as in
    `TrainConfig.pallas_kernels`.

    Attributes:
      seconds: time spent in compilation so far.
      n_compiled: number of compilations so far.
    """

    def __init__(self, jitted: Any, kernels: str | None = None):
        self._jitted = jitted
        self._kernels = kernels
        self._compiled: dict[tuple, Callable] = {}
        self.seconds: float = 0.0

    def __call__(self, state: Any, batch: Batch) -> Any:
        """The function's result; compiles first where this shape of batch is new."""
        return self.compile(state, batch)(state, batch)

    def compile(self, state: Any, batch: Batch) -> Callable[..., Any]:
        """The executable for this shape of batch; `state` may be shapes alone."""
        arrays, fields = jax.tree.flatten(batch)
        shape = fields, tuple((x.shape, x.dtype) for x in arrays)
        if shape not in self._compiled:
            start = time.perf_counter()
            with certificates.using(self._kernels):
                self._compiled[shape] = self._jitted.lower(state, batch).compile()
            self.seconds += time.perf_counter() - start
        return self._compiled[shape]

    def lower(self, state: Any, batch: Batch, platform: str) -> jax.stages.Lowered:
        """The program for devices of a platform that may be absent, not yet compiled; shapes alone will do."""
        with lowering_for(platform), certificates.using(self._kernels):
            return self._jitted.trace(state, batch).lower(lowering_platforms=(platform,))

    @property
    def n_compiled(self) -> int:
        return len(self._compiled)


class Program:
    """The functions of one experiment for the mesh of its config, whose devices may be absent, and no data.

    Attributes:
      blueprint: its model, with the adapters that it trains.
      abstract_state: shape, dtype and sharding of the train state.
      state_shardings: where every array of the train state lies.
      row_devices: number of parts into which the rows of a batch are cut.
      row_sharding: where the rows of a batch lie.
      everywhere: of what every device has.
      train_step: `(state, batch) -> (state, metrics)`; the state that it is given is donated.

    Raises:
      ValueError: sizes that do not fit together, or a target of adapters that is no projection of the model.
    """

    def __init__(self, config: RunConfig, mesh: Mesh):
        self.config: RunConfig = config
        self.mesh: Mesh = mesh
        self.row_devices: int = row_devices(mesh)
        check_batch_size(config, mesh)
        base = make_blueprint(config.model)
        train = config.train
        lora = Lora(train.lora_rank, train.lora_targets, train.lora_alpha) if train.lora_rank else None
        adapted = None if lora is None else adapt(base, lora)
        self.blueprint: Blueprint | AdaptedBlueprint = adapted or base
        schedule = make_schedule(config.optimizer, train.steps)
        self._optimizer = make_optimizer(config.optimizer, schedule, self.blueprint.traits.params)

        key_data = jax.random.key_data(jax.random.key(train.seed))
        init = functools.partial(init_state, config.model, self._optimizer, adapted=adapted)
        shapes = jax.eval_shape(init, key_data)
        self.state_shardings: TrainState = state_shardings(self.blueprint, shapes, self.mesh)
        self.abstract_state: TrainState = jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self.state_shardings
        )
        # It runs once: on a CPU its compiler takes four times as long to make it fast.
        hasty = {"xla_backend_optimization_level": 0} if self.mesh.devices.flat[0].platform == "cpu" else None
        self._jitted_init = jax.jit(init, out_shardings=self.state_shardings, compiler_options=hasty)
        self._jitted_adopt = jax.jit(
            lambda variables, key_data: first_state(variables, self._optimizer, key_data, adapted),
            out_shardings=self.state_shardings,
            donate_argnums=0,
            compiler_options=hasty,
        )
        self.everywhere: NamedSharding = NamedSharding(self.mesh, PartitionSpec())
        self.row_sharding: NamedSharding = NamedSharding(self.mesh, PartitionSpec(RULES["batch"]))
        step = make_train_step(self.blueprint, self._optimizer, schedule, train)
        self.train_step: CompiledStep = self.updating(step, self.state_shardings)

    def updating(self, step: Callable[..., Any], shardings: Any) -> CompiledStep:
        """Compiles `step(state, batch) -> (state, metrics)` where the arrays of the state have these shardings."""
        taken = (shardings, self.row_sharding)
        given = (shardings, self.everywhere)
        jitted = jax.jit(step, donate_argnums=0, in_shardings=taken, out_shardings=given)
        return CompiledStep(jitted, self.config.train.pallas_kernels)

    def scoring(self, step: Callable[..., Any]) -> CompiledStep:
        """Compiles `step(variables, batch) -> scores`."""
        taken = self.state_shardings.variables, self.row_sharding
        jitted = jax.jit(step, in_shardings=taken, out_shardings=self.everywhere)
        return CompiledStep(jitted, self.config.train.pallas_kernels)


class Session(Program):
    """A program with its data, `dataset`. Use it inside `jax.set_mesh(session.mesh)`.

    Args:
      devices: those of the mesh; None: all.
      limited: refuses what is beyond the memory of the devices.

    Raises:
      ValueError: sizes that do not fit together, or no machine, or what the data refuse.
    """

    def __init__(self, config: RunConfig, devices: Sequence[Any] | None = None, *, limited: bool = False):
        mesh = make_mesh(config.mesh, devices)
        check_batch_size(config, mesh)
        sizes = {"batch_size": config.train.batch_size, "valid_batch_size": config.train.valid_batch_size}
        self.dataset: Dataset = config.data.build(**sizes)
        check_session(config, mesh, self.dataset, limited=limited)
        super().__init__(config, mesh)

    def init_state(self, seed: int | None = None, variables: Variables | None = None) -> TrainState:
        """The state before the first update, born where it stays.

        Args:
          seed: None: that of the config.
          variables: of the model without adapters, to begin with, placed as in `abstract_state`; donated. None:
            random ones.

        Raises:
          ValueError: `variables` are missing, and the config asks for adapters.
        """
        check_adapters(self.config.train, begins_with=variables)
        key_data = jax.random.key_data(jax.random.key(self.config.train.seed if seed is None else seed))
        return self._jitted_init(key_data) if variables is None else self._jitted_adopt(variables, key_data)

    @functools.cached_property
    def _rows(self) -> list[int] | None:
        return rows_of_process(self.row_sharding, self.config.train.batch_size)

    def stream(self) -> Stream:
        """A new stream of training batches, of the rows that this process needs."""
        return self.dataset.train() if self._rows is None else self.dataset.train(self._rows)

    def place(self, batch: Batch) -> Batch:
        """A batch as `stream` gives it, with its rows sharded over the devices of the mesh."""
        return place_rows(batch, self.row_sharding, self.config.train.batch_size, self._rows)

    def compile(self) -> Any:
        """Compiles the train step for the first batch, whose place in the stream is kept; returns the executable."""
        first = next(self.stream())
        return self.train_step.compile(self.abstract_state, self.place(first))

    def update(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One train step on a batch as the stream gives it."""
        return self.train_step(state, self.place(batch))

    def begin(
        self,
        checkpoints: Checkpoints | None = None,
        config: RunConfig | None = None,
        variables: Variables | None = None,
    ) -> ResumePoint:
        """The start of a new run, or of one that goes on from the newest checkpoint that can be used.

        Args:
          checkpoints: those of the run; None: it is new.
          config: the run's, where it differs from the session's in learning rate and seed; None: the session's.
          variables: what a new run begins with, donated; None: random ones.

        Raises:
          ValueError: the checkpoint's cursor belongs to other data.
          UnusableError: there are checkpoints, or were, and none can be used.
        """
        config = config or self.config
        stream = self.stream()
        found = checkpoints.restore_newest(self.abstract_state, to_json(config)) if checkpoints else None
        if found is None:
            state = self.init_state(config.train.seed, variables)
            return ResumePoint(state, stream, is_given=variables is not None)
        state, seal = found
        try:
            stream.set_state(seal.cursor)
        except (LookupError, TypeError) as error:
            raise ValueError(f"checkpoint {seal.step}: its cursor is not one of these data: {error!r}") from error
        return ResumePoint(state, stream, seal.step, seal.n_rows)
