"""Mesh, data and compiled steps of a run. A `Program` is a session without data."""

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
from jaxzoo.utils.host_memory import give_back_large_blocks
from pallas_kernels import certificates
from pallas_kernels.dispatch import lowering_for


@dataclasses.dataclass
class ResumePoint:
    """State and stream at which training begins."""

    state: TrainState
    """The state, which training donates."""
    stream: Stream
    """Next training batches."""
    step: int = 0
    """Number of updates of `state`."""
    n_rows: int = 0
    """Number of rows of metrics up to `step`."""
    is_given: bool = False
    """Whether `state` has the parameters of another run; it is saved before the first update."""


class CompiledStep:
    """A jitted function of (state or variables, batch or batches), compiled ahead of time for each new batch shape.

    The shape of a batch: its fields, their shapes and dtypes. `kernels`: as in `TrainConfig.pallas_kernels`.

    Attributes:
      seconds: total time of compilation.
      n_compiled: number of compilations.
    """

    def __init__(self, jitted: Any, kernels: str | None = None):
        self._jitted = jitted
        self._kernels = kernels
        self._compiled: dict[tuple, Callable] = {}
        self.seconds: float = 0.0

    def __call__(self, state: Any, batch: Batch) -> Any:
        return self.compile(state, batch)(state, batch)

    def compile(self, state: Any, batch: Batch) -> Callable[..., Any]:
        """Returns the executable for this shape of batch; `state` may be abstract."""
        arrays, fields = jax.tree.flatten(batch)
        shape = fields, tuple((x.shape, x.dtype) for x in arrays)
        if shape not in self._compiled:
            start = time.perf_counter()
            with certificates.using(self._kernels):
                self._compiled[shape] = self._jitted.lower(state, batch).compile()
            self.seconds += time.perf_counter() - start
        return self._compiled[shape]

    def lower(self, state: Any, batch: Batch, platform: str) -> jax.stages.Lowered:
        """Lowers the program for devices of a platform, which may be absent; the arguments may be abstract."""
        with lowering_for(platform), certificates.using(self._kernels):
            return self._jitted.trace(state, batch).lower(lowering_platforms=(platform,))

    @property
    def n_compiled(self) -> int:
        return len(self._compiled)


class Program:
    """Functions of one run on a mesh, whose devices may be absent, without data.

    Attributes:
      blueprint: the model, with its trained adapters.
      abstract_state: shape, dtype and sharding of the train state.
      state_shardings: sharding of every array of the train state.
      row_devices: number of devices over which the rows of a batch are sharded.
      row_sharding: sharding of the rows of a batch.
      everywhere: replicated sharding.
      train_step: `(state, batch) -> (state, metrics)`; the state is donated.

    Raises:
      ValueError: sizes do not fit together, or a target of adapters is no projection of the model.
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
        # Runs once: without optimizations the CPU compiler is four times as fast.
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
        """Makes a compiled step `(state, batch) -> (state, metrics)` for these shardings of the state."""
        taken = (shardings, self.row_sharding)
        given = (shardings, self.everywhere)
        jitted = jax.jit(step, donate_argnums=0, in_shardings=taken, out_shardings=given)
        return CompiledStep(jitted, self.config.train.pallas_kernels)

    def scoring(self, step: Callable[..., Any]) -> CompiledStep:
        """Makes a compiled step `(variables, batch) -> scores`."""
        taken = self.state_shardings.variables, self.row_sharding
        jitted = jax.jit(step, in_shardings=taken, out_shardings=self.everywhere)
        return CompiledStep(jitted, self.config.train.pallas_kernels)


class Session(Program):
    """A program with its data, `dataset`. Use it inside `jax.set_mesh(session.mesh)`.

    Args:
      devices: devices of the mesh; None: all.
      limited: refuses models that exceed the memory of the devices.

    Raises:
      ValueError: sizes do not fit together, or the data refuse them.
    """

    def __init__(self, config: RunConfig, devices: Sequence[Any] | None = None, *, limited: bool = False):
        mesh = make_mesh(config.mesh, devices)
        check_batch_size(config, mesh)
        sizes = {"batch_size": config.train.batch_size, "valid_batch_size": config.train.valid_batch_size}
        self.dataset: Dataset = config.data.build(**sizes)
        check_session(config, mesh, self.dataset, limited=limited)
        super().__init__(config, mesh)
        give_back_large_blocks(4 * self.blueprint.n_params)

    def init_state(self, seed: int | None = None, variables: Variables | None = None) -> TrainState:
        """Creates the state before the first update, with its final sharding.

        Args:
          seed: default: the seed of the config.
          variables: first variables of the model without adapters, sharded as in `abstract_state`; donated. None:
            random ones, which the config of a run with adapters does not allow (`ValueError`).
        """
        check_adapters(self.config.train, begins_with=variables)
        key_data = jax.random.key_data(jax.random.key(self.config.train.seed if seed is None else seed))
        return self._jitted_init(key_data) if variables is None else self._jitted_adopt(variables, key_data)

    @functools.cached_property
    def _rows(self) -> list[int] | None:
        return rows_of_process(self.row_sharding, self.config.train.batch_size)

    def stream(self) -> Stream:
        """A new stream of training batches, with the rows that this process needs."""
        return self.dataset.train() if self._rows is None else self.dataset.train(self._rows)

    def place(self, batch: Batch) -> Batch:
        """Shards the rows of a batch of `stream` over the devices of the mesh."""
        return place_rows(batch, self.row_sharding, self.config.train.batch_size, self._rows)

    def compile(self) -> Any:
        """Compiles the train step for the shape of the first batch."""
        first = next(self.stream())
        return self.train_step.compile(self.abstract_state, self.place(first))

    def update(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Makes a train step on a batch of `stream`."""
        return self.train_step(state, self.place(batch))

    def begin(
        self,
        checkpoints: Checkpoints | None = None,
        config: RunConfig | None = None,
        variables: Variables | None = None,
    ) -> ResumePoint:
        """Returns the start of a new run, or restores the newest valid checkpoint.

        Args:
          checkpoints: checkpoints of the run; None: a new run.
          config: config of the run, if its learning rate and seed differ from the session's.
          variables: first variables of a new run, donated; None: random ones.

        Raises:
          ValueError: the checkpoint's cursor belongs to other data.
          UnusableError: there are, or were, checkpoints, and none is valid.
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
            raise ValueError(f"checkpoint {seal.step}: its cursor does not belong to these data: {error!r}") from error
        return ResumePoint(state, stream, seal.step, seal.n_rows)
