"""Base classes of sequence mixers: the contract that every mixer satisfies.

A mixer is a Flax NNX module. Parameters live in the module; calls never change it, and recurrent states are passed in
and returned. Its three forms give the same numbers:

- `y = mixer(x, context)`: all tokens at once, for training;
- `y, state = mixer.prefill(x, state, context)`: any number of tokens from any state, for prompts and chunks;
- `y_t, state = mixer.step(x_t, state, context)`: one token.

A mixer defines them one by one, or all at once as `mix`.

`context` (`Context`: token ids, packed documents, a random key) is optional. `config.capabilities` lists what a mixer
supports and requires; a mixer raises an error for documents that it would mix, or if token ids that it reads are
missing.

The output has the dtype of the input; parameters are float32. A state is a NamedTuple of arrays, and **every leaf has
the batch as its leading axis**: rows are independent sequences that may be at different positions. Recurrent sums are
float32; cached activations (keys, values, convolution inputs) have the dtype given to `init_state`.
"""

import abc
import dataclasses
import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike

from jaxzoo.config.checked import Checked, NonNegativeFloat, PositiveInt
from jaxzoo.layers.variables import cast_matrices
from jaxzoo.utils.array_typing import Array, Bool, Float, Int, PRNGKeyArray
from jaxzoo.utils.explicit_mesh import explicit_mesh, with_auto_axes

State = Any
"""NamedTuple of arrays with the batch as leading axis; each mixer defines its own."""

Losses = dict[str, Array]
"""Auxiliary losses of a mixer, float32 scalars by name, before weighting."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Context:
    """Inputs of a mixer besides `x`, which a model passes to every layer; without the axis `t` in `step`."""

    tokens: Int[Array, "b t"] | None = None
    """Token ids, int32."""
    segment_ids: Int[Array, "b t"] | None = None
    """Ids of packed documents, int32; each document is one contiguous run of equal ids, unique in its row, and sees no
    other."""
    prefix: Bool[Array, "b t"] | None = None
    """Tokens of a prefix, the first tokens of a document: each sees all of them, also later ones, before the document
    continues causally. A call or `prefill` must hold the whole prefix; None: causal from the first token on."""
    key: PRNGKeyArray | None = None
    """Random key for training, different for every layer; None: the mixer is deterministic."""
    first_values: Float[Array, "b t d"] | None = None
    """Output of `Mixer.values` of the first layer that has them, for the value residual of later layers (RWKV-7); set
    by the model."""


NO_CONTEXT = Context()
"""Default context: one document per row, no randomness."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capabilities:
    """Features that a mixer supports, read by models, generation and the contract's tests."""

    causal: bool = True
    """Outputs do not depend on later inputs."""
    streams: bool = True
    """Has `init_state`, `prefill` and `step`."""
    growing_state: bool = False
    """The state holds at most `capacity` tokens (`init_state`)."""
    segments: bool = False
    """The call supports `Context.segment_ids`."""
    prefix: bool = False
    """Call and `prefill` support `Context.prefix`."""
    needs_tokens: bool = False
    """Reads `Context.tokens`."""
    makes_values: bool = False
    """Defines `values`, which later layers read as `Context.first_values`."""
    needs_values: bool = False
    """Reads `Context.first_values`."""
    sequence_parallel: bool = False
    """Supports sequences sharded over time (mesh axis `sequence`); no device holds all activations of a layer, except
    those that attention gathers."""
    selects: bool = False
    """Mixes only selected tokens; outputs of the others depend on no other token."""
    future_rounding: float = 0.0
    """Largest influence of the future relative to the past, from rounding in Fourier transforms."""
    prefill_tolerance: float = 1e-5
    """Tolerance of `prefill` compared with `step`, relative to the largest entry."""

    def __post_init__(self) -> None:
        if self.streams and not self.causal:
            raise ValueError("Capabilities.streams=True needs causal=True: a stream does not know the future")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inherited:
    """Values of the model that replace None in a mixer's config."""

    d_model: int
    """Model width."""
    max_length: int
    """Longest sequence of the model."""
    init_std: float
    """Standard deviation of the initialisation."""
    out_init_std: float
    """Standard deviation for output projections."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixerConfig(Checked, abc.ABC):
    """Fields of every mixer's config. None: the model's value (see `inherit`)."""

    mixer_class: ClassVar["type[Mixer]"]
    """Mixer class that declares `config: ThisConfig`; built by `build`."""
    promises: ClassVar[Capabilities] = Capabilities()
    """Capabilities that do not depend on the fields."""
    size_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that set the size of the state, all to one number (`jaxzoo.bench`); (): the size is fixed."""

    d_model: PositiveInt | None = None
    """Model width; None: the model's."""
    init_std: NonNegativeFloat | None = None
    """Standard deviation of the normal initialisation of the projections; None: the model's, 0.02 outside a model."""
    out_init_std: NonNegativeFloat | None = None
    """Standard deviation for the output projection; None: the model's, or `init_std` outside a model."""

    def require_divisible(self, field: str, by: str) -> None:
        """Raises `ValueError` unless the value of `field` is None or a multiple of the value of `by`."""
        if getattr(self, field) is None:
            return
        divisor = getattr(self, by)
        self.require(by, divisor > 0, "must be positive")
        self.require(field, getattr(self, field) % divisor == 0, f"must be divisible by {by}={divisor}")

    def inherit(self, model: Inherited) -> Self:
        """Returns the config with None replaced by the model's values."""
        names = {field.name for field in dataclasses.fields(self)}
        values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
        return dataclasses.replace(
            self, **{name: value for name, value in values.items() if name in names and getattr(self, name) is None}
        )

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the mixer; override if they depend on the fields."""
        return self.promises

    @property
    def scanned_as(self) -> "MixerConfig":
        """Config without fields that only affect initial values by depth. Layers with equal `scanned_as` compute the
        same function of their variables, and run as one scan."""
        return self

    @property
    def loss_weights(self) -> Mapping[str, float]:
        """Weights of the auxiliary losses of `with_losses`, by name."""
        return {}

    @property
    def width(self) -> int:
        """`d_model`, which must be known.

        Raises:
          ValueError: `d_model` is None.
        """
        self.require("d_model", self.d_model is not None, "must be known to build the mixer", "set it")
        assert self.d_model is not None
        return self.d_model

    @property
    def std(self) -> float:
        """`init_std`, with the default filled in."""
        return 0.02 if self.init_std is None else self.init_std

    @property
    def out_std(self) -> float:
        """`out_init_std`, with the default filled in."""
        return self.std if self.out_init_std is None else self.out_init_std

    @classmethod
    @abc.abstractmethod
    def tiny(cls) -> Self:
        """Config for tests: every mechanism enabled, widths at most 16, odd if possible."""

    def build(self, *, rngs: nnx.Rngs) -> "Mixer":
        """Builds the mixer, with parameters from the `params` stream of `rngs`."""
        return self.mixer_class(self, rngs=rngs)

    @abc.abstractmethod
    def flops_per_token(self, length: int) -> float:
        """Forward FLOPs per token at sequence length `length`, averaged over positions, of the parallel form in plain
        XLA: 2 per multiply-add; only matmuls, convolutions and recurrences."""

    def papers_state_size(self, length: int) -> int | None:
        """State size in elements by Based, App. E.2, as printed; None without a formula."""
        del length
        return None

    def papers_layer_flops(self, length: int, *, mlp: str, mlp_width: int) -> float | None:
        """FLOPs per token of a layer with MLP by Zoology, App. C.2, as printed; None without a formula."""
        del length, mlp, mlp_width
        return None

    def check_context(self, context: Context, *, streaming: bool = False) -> None:
        """Checks that the mixer supports the context; called before each form.

        Raises:
          ValueError: packed documents that are not supported, or come with a state; a prefix that is not supported, or
            comes in `step`; missing token ids or values.
        """
        name = type(self).__name__.removesuffix("Config")
        if self.capabilities.needs_tokens and context.tokens is None:
            raise ValueError(f"{name} reads token ids, and got none; call it with Context(tokens=...)")
        if self.capabilities.needs_values and context.first_values is None:
            raise ValueError(
                f"{name} mixes its values with those of an earlier layer, and got none; call it with "
                "Context(first_values=earlier.values(x)), or build it with value_residual=False"
            )
        if context.prefix is not None and not self.capabilities.prefix:
            raise ValueError(
                f"{name} does not honour Context.prefix with these fields: its tokens would not see later ones; take "
                "TaylorLinearAttention without decay, or no prefix"
            )
        if context.prefix is not None and context.prefix.ndim < 2:
            raise ValueError(f"{name} got Context.prefix in step, which sees one token; give it to prefill")
        if context.segment_ids is None:
            return
        if streaming:
            raise ValueError(f"{name} got segment_ids with a state; start every document from init_state instead")
        if not self.capabilities.segments:
            raise ValueError(
                f"{name} does not honour segment_ids: a document would leak into the next; "
                "pack by data.packing='concatenate', or take another mixer"
            )


def _on_any_mesh(method: Callable) -> Callable:
    """Wraps a method of a mixer to support Explicit mesh axes: outputs are sharded like `x`, states like the given
    state, so that a loop can carry them."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if explicit_mesh((args, kwargs)) is None:
            return method(self, *args, **kwargs)
        graph, variables = nnx.split(self)
        x = args[0] if args else kwargs.get("x", kwargs.get("x_t"))
        like = x
        if method.__name__ in ("prefill", "step"):
            like = (x, args[1] if len(args) > 1 else kwargs["state"])
        elif method.__name__ == "with_losses":
            like = (x, PartitionSpec())

        def call(variables: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
            return method(nnx.merge(graph, variables), *args, **kwargs)

        return with_auto_axes(call, (variables, args, kwargs), like)

    return run


def _checked(method: Callable) -> Callable:
    """Wraps a form of a mixer: checks context and input, and supports any mesh."""
    run, streaming = _on_any_mesh(method), method.__name__ in ("prefill", "step")

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        context = next((value for value in given if isinstance(value, Context)), NO_CONTEXT)
        self.config.check_context(context, streaming=streaming)
        name = "x_t" if "x_t" in kwargs else "x"
        x = args[0] if args else kwargs.get(name)
        if self.dtype is not None and x is not None:
            x = x.astype(self.dtype)
            args, kwargs = ((x, *args[1:]), kwargs) if args else (args, {**kwargs, name: x})
        if x is not None and x.shape[-1:] != (self.config.width,):
            name = type(self).__name__
            raise ValueError(
                f"{name} got an input of shape {x.shape}; its last axis must be d_model={self.config.width}"
            )
        return run(self, *args, **kwargs)

    return checked


def _with_fields(init: Callable, declared: type[MixerConfig]) -> Callable:
    """Wraps `__init__` of a mixer to accept the config's fields instead of a config, and dtypes."""

    @functools.wraps(init)
    def run(
        self: Any,
        config: MixerConfig | None = None,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike | None = None,
        **fields: Any,
    ) -> None:
        if config is not None and fields:
            raise TypeError(f"{type(self).__name__} takes a config or its fields ({', '.join(fields)}), not both")
        known = [field.name for field in dataclasses.fields(declared)]
        for name in fields:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1) or known
                raise TypeError(f"{type(self).__name__} has no field {name}; did you mean {', '.join(near)}?")
        init(self, declared(**fields) if config is None else config, rngs=rngs)
        if dtype is not None:
            self.dtype = jnp.dtype(dtype)
        if param_dtype is not None:
            cast_matrices(self, param_dtype)

    return run


def _signature(declared: type[MixerConfig]) -> inspect.Signature:
    """Signature with the config's fields and the arguments that `_with_fields` adds."""
    kind: Any = inspect.Parameter.KEYWORD_ONLY
    added = {"rngs": (inspect.Parameter.empty, nnx.Rngs)} | dict.fromkeys(("dtype", "param_dtype"), (None, DTypeLike))
    more = [inspect.Parameter(name, kind, default=x, annotation=of) for name, (x, of) in added.items()]
    return inspect.Signature([*inspect.signature(declared).parameters.values(), *more])


class _Signature:
    """Descriptor of the signature of a mixer class."""

    def __get__(self, _: Any, cls: type) -> inspect.Signature:
        config = getattr(cls, "__annotations__", {}).get("config")
        if not (isinstance(config, type) and issubclass(config, MixerConfig)):
            raise AttributeError("__signature__")
        return _signature(config)


class Mixer(nnx.Module):
    """Base class of mixers; see the module docstring. Subclasses are final: wrap them instead of subclassing."""

    config: Any
    """The mixer's own `MixerConfig`."""
    dtype: Any = None
    """Dtype to which inputs are cast, and so of computation and output; None: the input's."""
    __signature__ = _Signature()

    def __init__(
        self, config: Any = None, *, rngs: nnx.Rngs, dtype: Any = None, param_dtype: Any = None, **fields: Any
    ):
        """Builds the mixer from a config, or from the config's fields: `RetNet(d_model=64, n_heads=4, rngs=rngs)`.

        Args:
          config: the mixer's config; None: built from `fields`.
          rngs: the `params` stream initialises the parameters.
          dtype: dtype of computation and output, as in Flax; None: the input's.
          param_dtype: dtype of parameters with weight decay; None: float32. Norms, biases, decay rates and buffers are
            always float32.
          **fields: fields of the config.
        """
        raise NotImplementedError

    def __init_subclass__(cls, **options: Any) -> None:
        """Registers the class as `mixer_class` of its declared config, and wraps its forms."""
        super().__init_subclass__(**options)
        config = inspect.get_annotations(cls).get("config")
        if isinstance(config, str):  # after `from __future__ import annotations`
            config = vars(sys.modules[cls.__module__]).get(config)
        if isinstance(config, type) and issubclass(config, MixerConfig):
            known = vars(config).get("mixer_class", cls)
            if (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__):  # or defined once more
                config.mixer_class = cls
            cls.__init__ = _with_fields(cls.__init__, config)
        for name in ("__call__", "with_losses", "prefill", "step"):
            if name in cls.__dict__:
                setattr(cls, name, _checked(cls.__dict__[name]))
        if "values" in cls.__dict__:
            cls.values = _on_any_mesh(cls.values)

    @_checked
    def __call__(self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT) -> Float[Array, "b t d"]:
        """Mixes all tokens at once; equal to `prefill` from `init_state`."""
        return self.mix(x, None, context)[0] if x.shape[0] else x

    def with_losses(
        self, x: Float[Array, "b t d"], context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], Losses]:
        """Forward pass in training: the output, and the auxiliary losses named by `config.loss_weights`."""
        return self(x, context), {}

    def values(
        self, x: Float[Array, "*b d"], state: State = None, context: Context = NO_CONTEXT
    ) -> Float[Array, "*b d"]:
        """Values of the tokens, which later layers read as `Context.first_values` (`Capabilities.makes_values`).

        Args:
          x: input `(b, t, d)` of the call or `prefill`, or `(b, d)` of `step`.
          state: input state of `prefill` or `step`; None in a call.
          context: context of the call.
        """
        raise NotImplementedError

    def init_state(self, batch_size: int, *, capacity: int | None = None, dtype: DTypeLike = jnp.float32) -> State:
        """Initial state, before the first token of a document.

        Args:
          batch_size: number of rows.
          capacity: number of tokens that a growing state can hold; ignored if the size is fixed.
          dtype: dtype of cached activations.
        """
        raise NotImplementedError

    @_checked
    def prefill(
        self, x: Float[Array, "b t d"], state: State, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b t d"], State]:
        """Mixes `t >= 0` tokens from any state; returns outputs and the new state."""
        return self.mix(x, state, context) if x.shape[0] else (x, state)

    @_checked
    def step(
        self, x_t: Float[Array, "b d"], state: State, context: Context = NO_CONTEXT
    ) -> tuple[Float[Array, "b d"], State]:
        """Mixes one token; returns the output and the new state."""
        return self.mix(x_t, state, context) if x_t.shape[0] else (x_t, state)

    def mix(self, x: Float[Array, "*b d"], state: State, context: Context) -> tuple[Float[Array, "*b d"], State]:
        """Common implementation of the three forms; a mixer defines this or the forms themselves.

        Args:
          x: input `(b, t, d)` of a call or `prefill`, or `(b, d)` of `step`.
          state: input state of `prefill` or `step`; None in a call, which drops the returned state.
          context: context of the form; packed documents only in a call.
        """
        raise NotImplementedError


def state_bytes(mixer: Mixer, batch_size: int = 1, *, capacity: int | None = None, dtype: Any = jnp.float32) -> int:
    """Size of the mixer's state in bytes, from the shapes of its arrays (`jax.eval_shape`)."""
    state = jax.eval_shape(lambda: mixer.init_state(batch_size, capacity=capacity, dtype=dtype))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
