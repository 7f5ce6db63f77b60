"""One layer, and a stack of equal periods of layers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from jaxzoo.layers.mlp import MLP
from jaxzoo.layers.norm import Norm, norm
from jaxzoo.layers.probe import is_recording, scope, show, show_lazily
from jaxzoo.layers.residual_norm import ResidualStream, add_and_norm, constrain_residual, has_kernel, settled
from jaxzoo.mixers.attention.multi_head import MultiHeadConfig
from jaxzoo.mixers.base import Context, Losses, Mixer, MixerConfig, State
from jaxzoo.models.layout import Fold
from jaxzoo.models.model_config import LanguageModelConfig
from jaxzoo.utils.array_typing import Array, Float, PRNGKeyArray

Mix = Callable[[Mixer, Array, State, Context], tuple[Array, State, Losses]]
"""Function that runs a mixer: (mixer, normed input, state, context) -> (output, new state, loss terms)."""

BRANCH_INPUT = "branch_input"
"""Name of the residual before each branch, for remat policies."""


def dropout(x: Array, rate: float, key: PRNGKeyArray | None) -> Array:
    """Zeroes entries at `rate`, to 2^-17, and scales the others by 1 / (1 - rate); without a key returns `x`. Two
    entries share the 32 bits of a random number, which takes 5 to 15 % off an MQAR step of attention on a CPU."""
    if key is None or rate == 0:
        return x
    *leading, width = x.shape
    words = jax.random.bits(key, (*leading, -(-width // 2)), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(*leading, 2 * words.shape[-1])[..., :width]
    keep = halves >= np.uint16(min(round(rate * 2**16), 2**16 - 1))
    return jnp.where(keep, x / (1 - rate), jnp.zeros_like(x))


def add_losses(first: Losses, second: Losses) -> Losses:
    """Adds loss terms by name."""
    zero = jnp.zeros((), jnp.float32)
    return {name: first.get(name, zero) + second.get(name, zero) for name in first | second}


class Block(nnx.Module):
    """A pre-norm layer: `r += mixer(norm(r))`, then `r += mlp(norm(r))`; the residual `r` is float32. With
    `mlp="identity"` the second step is `r += norm(r)`; `none` omits it. With `parallel_residual` both are one: `r +=
    mixer(norm(r)) + mlp(norm'(r))`, as in GPT-NeoX. With `attention_post_norm` a layer of softmax attention is `r +=
    norm(mixer(r))`, then `r += norm(mlp(r))`."""

    def __init__(self, config: LanguageModelConfig, mixer: MixerConfig, *, rngs: nnx.Rngs):
        self.dtype: jnp.dtype = config.compute_dtype
        self.dropout_rate: float = config.residual_dropout
        self.parallel_residual: bool = config.parallel_residual
        self.post_norm: bool = config.attention_post_norm and isinstance(mixer, MultiHeadConfig)
        self.saves_sums: bool = config.remat == "mixer_inputs"
        self.mixer_norm: Norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        self.mixer: Mixer = mixer.build(rngs=rngs)
        self.has_second_branch: bool = config.mlp != "none"
        if self.has_second_branch:
            self.mlp_norm: Norm = norm(config.norm, config.d_model, eps=config.norm_eps, rngs=rngs)
        self.has_mlp: bool = config.hidden_width > 0
        if config.mlp not in ("identity", "none"):
            self.mlp: MLP = MLP(
                config.mlp,
                config.d_model,
                config.hidden_width,
                bias=config.mlp_bias,
                std=config.init_std,
                out_std=config.out_std,
                rngs=rngs,
            )

    def __call__(
        self, stream: ResidualStream, mix: Mix, state: State, context: Context
    ) -> tuple[ResidualStream, State, Losses, Array | None]:
        """Runs the layer, its mixer by `mix`; returns the residual stream, the mixer's new state, its weighted losses,
        and the `first_values` of later layers. Where a kernel adds and norms, it adds the last branch in the next
        layer."""
        dropout_keys = (None, None)
        if context.key is not None:
            *dropout_keys, mixer_key = jax.random.split(context.key, 3)
            context = dataclasses.replace(context, key=mixer_key)
        if not self.mixer.config.capabilities.prefix:
            context = dataclasses.replace(context, prefix=None)
        residual, normed = self._branch_input(stream, None, self.mixer_norm)
        normed = show("mixer.in", normed)
        if context.first_values is None and self.mixer.config.capabilities.makes_values:
            context = dataclasses.replace(context, first_values=self.mixer.values(normed, state, context))
        with scope("mixer"):
            if state is None:
                show_lazily("influence", lambda: influence(self.mixer, normed, context))
                whole_rows = context.segment_ids is None and context.prefix is None
                if self.mixer.config.capabilities.streams and whole_rows:
                    show_lazily("state", lambda: states_after_each_token(self.mixer, normed, context))
            mixed, state, losses = mix(self.mixer, normed, state, context)
        mixed = show("mixer.out", self._after(mixed, self.mixer_norm))
        self._check_outputs(losses)
        stream = self._add(residual, mixed, dropout_keys[0])
        if self.has_second_branch:
            residual, hidden = self._branch_input(stream, residual, self.mlp_norm)
            hidden = show("mlp.out", self._after(self.mlp(hidden) if self.has_mlp else hidden, self.mlp_norm))
            stream = self._add(residual, hidden, dropout_keys[1])
        stream = stream._replace(residual=show("out", stream.residual))
        weights = self.mixer.config.loss_weights
        losses = {name: weights[name] * loss for name, loss in losses.items()}
        return stream, state, losses, context.first_values

    def defers(self, residual: Array, key: PRNGKeyArray | None) -> bool:
        """Whether branches are added by the kernel of the next norm; `key`: of dropout."""
        drops = key is not None and self.dropout_rate > 0
        other = self.parallel_residual or self.post_norm or self.saves_sums
        return not (drops or other) and has_kernel(residual, self.dtype)

    def _add(self, residual: Array, branch: Array, key: PRNGKeyArray | None) -> ResidualStream:
        """Adds the output of a branch, or leaves that to the next norm."""
        if self.defers(residual, key):
            return ResidualStream(residual, branch)
        return ResidualStream(constrain_residual(residual + self._dropped(branch, key)))

    def _branch_input(self, stream: ResidualStream, before: Array | None, norm: Norm) -> tuple[Array, Array]:
        """The residual, and input of a branch; `before`: the residual before this layer, None in its first branch."""
        source = before if self.parallel_residual else None
        if self.post_norm or source is not None or not has_kernel(stream.residual, self.dtype):
            residual = checkpoint_name(settled(stream), BRANCH_INPUT)
            source = residual if source is None else source
            return residual, (source if self.post_norm else norm(source)).astype(self.dtype)
        if self.saves_sums:
            stream = ResidualStream(checkpoint_name(settled(stream), BRANCH_INPUT))
        return add_and_norm(stream, norm, self.dtype)

    def _after(self, branch: Array, norm: Norm) -> Array:
        """Output of a branch."""
        return norm(branch.astype(jnp.float32)) if self.post_norm else branch

    def _dropped(self, branch: Array, key: PRNGKeyArray | None) -> Array:
        return dropout(branch.astype(jnp.float32), self.dropout_rate, key)

    def _check_outputs(self, losses: Losses) -> None:
        """Refuses loss terms without a weight, and values that a mixer sows, which would be dropped."""
        name = type(self.mixer).__name__
        unknown = losses.keys() - self.mixer.config.loss_weights.keys()
        if unknown:
            raise ValueError(f"{name}.with_losses: {sorted(unknown)[0]!r} must have a weight in config.loss_weights")
        sown = nnx.to_flat_state(nnx.state(self.mixer, nnx.Intermediate))
        if sown:
            path = "/".join(map(str, sown[0][0]))
            raise ValueError(f"{name} leaves {path!r} in itself, which nothing reads; return it from with_losses")


class Stack(nnx.Module):
    """`repeats` periods of equal blocks, whose variables have a leading axis of `repeats`. They are scanned or unrolled
    (`scan_layers`). A single period runs without that axis."""

    blocks: nnx.List[Block]

    def __init__(self, config: LanguageModelConfig, fold: Fold, *, rngs: nnx.Rngs):
        self.repeats: int = fold.repeats
        self.remat: str = config.remat
        self.scan_layers: bool = config.scan_layers

        def make(period: tuple[MixerConfig, ...], rngs: nnx.Rngs) -> nnx.List[Block]:
            return nnx.List([Block(config, mixer, rngs=rngs) for mixer in period])

        make_first = functools.partial(make, fold.period)
        if fold.repeats == 1:
            self.blocks = make_first(rngs)
        elif len(set(fold.periods)) == 1:
            self.blocks = nnx.split_rngs(splits=fold.repeats)(nnx.vmap(make_first, in_axes=0, out_axes=0))(rngs)
        else:
            # They compute the same function, but each begins with values of its own.
            definitions, variables = zip(*(nnx.split(make(period, rngs)) for period in fold.periods), strict=True)
            self.blocks = nnx.merge(definitions[0], jax.tree.map(lambda *x: jnp.stack(x), *variables))

    def __call__(
        self, residual: Float[Array, "... d"], mix: Mix, states: tuple[State, ...], context: Context
    ) -> tuple[Float[Array, "... d"], tuple[State, ...], Losses, Array | None]:
        """Runs all layers; `states` holds one mixer state per block of the period, stacked over repeats. Also returns
        the `first_values` for later stacks; a stack of several periods does not change them."""
        if self.repeats > 1 and is_recording():
            raise ValueError("values cannot leave a scan of layers; capture from jaxzoo.inspection.laid_open(model)")
        definition, variables = nnx.split(self.blocks)

        # A period that is computed again begins with one array, not with two.
        defers = self.remat in ("nothing", "projections") and self.blocks[-1].defers(residual, context.key)
        stream = ResidualStream(residual)

        def period(stream, variables, states, context):
            new_states: list[State] = []
            losses: Losses = {}
            values = context.first_values
            for i, (block, state) in enumerate(zip(nnx.merge(definition, variables), states, strict=True)):
                context = dataclasses.replace(context, first_values=values)
                stream, state, terms, values = block(stream, mix, state, fold_in(context, i))
                new_states.append(state)
                losses = add_losses(losses, terms)
            if not defers:
                stream = ResidualStream(settled(stream))
            return stream, tuple(new_states), losses, values

        if self.remat == "mixer_inputs":
            period = jax.checkpoint(period, policy=jax.checkpoint_policies.save_only_these_names(BRANCH_INPUT))
        elif self.remat == "projections":
            period = jax.checkpoint(period, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
        elif self.remat != "nothing":
            period = jax.checkpoint(period)
        if self.repeats == 1:
            stream, new_states, losses, values = period(stream, variables, states, context)
            return settled(stream), new_states, losses, values

        def body(stream, repeat):
            i, variables, states = repeat
            stream, states, losses, _ = period(stream, variables, states, fold_in(context, i))
            return stream, (states, losses)

        if defers:
            stream = ResidualStream(residual, jnp.zeros(residual.shape, self.blocks[-1].dtype))

        # A scan of two copies every activation into a stack and out of it: a fifth of an MQAR step on a CPU.
        unroll = self.repeats == 2 or not self.scan_layers
        repeats = (jnp.arange(self.repeats), variables, states)
        if self.remat == "everything" and self.repeats > 2:
            stream, (states, losses) = _scan_in_groups(body, stream, repeats, self.repeats)
        else:
            stream, (states, losses) = jax.lax.scan(body, stream, repeats, unroll=unroll)
        return settled(stream), states, jax.tree.map(jnp.sum, losses), context.first_values

    def init_state(self, batch_size: int, *, capacity: int | None, dtype: DTypeLike) -> tuple[State, ...]:
        """Returns the mixers' initial states, one per block of the period; stacked periods add a leading axis."""
        states = tuple(block.mixer.init_state(batch_size, capacity=capacity, dtype=dtype) for block in self.blocks)
        if self.repeats == 1:
            return states
        return jax.tree.map(lambda x: jnp.broadcast_to(x[None], (self.repeats, *x.shape)), states)


def influence(mixer: Mixer, x: Float[Array, "b t d"], context: Context) -> Float[Array, "b t s"]:
    """Frobenius norm of the derivative of each output token by each input token; t d backward passes."""
    b, t, d = x.shape
    _, pull_back = jax.vjp(lambda x: mixer(x, context), x)

    def of_token(place: Array) -> Float[Array, "b s"]:
        def of_channel(channel: Array) -> Float[Array, "b s"]:
            unit = jnp.zeros((t, d), x.dtype).at[place, channel].set(1)
            (dx,) = pull_back(jnp.broadcast_to(unit[None], (b, t, d)))
            return jnp.sum(jnp.square(dx.astype(jnp.float32)), axis=-1)

        return jnp.sqrt(jax.vmap(of_channel)(jnp.arange(d)).sum(0))

    return jax.lax.map(of_token, jnp.arange(t)).transpose(1, 0, 2)


def states_after_each_token(mixer: Mixer, x: Float[Array, "b t d"], context: Context) -> State:
    """Returns the states of `step` after each token; leaves (b, t, ...)."""
    b, t, _ = x.shape

    def step(state: State, now: tuple) -> tuple[State, State]:
        x_t, token, values = now
        at_token = dataclasses.replace(context, tokens=token, first_values=values, key=None)
        _, state = mixer.step(x_t, state, at_token)
        return state, state

    first = mixer.init_state(b, capacity=t, dtype=x.dtype)
    tokens = jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), (x, context.tokens, context.first_values))
    _, states = jax.lax.scan(step, first, tokens)
    return jax.tree.map(lambda leaf: leaf.swapaxes(0, 1), states)


def fold_in(context: Context, number: jax.typing.ArrayLike) -> Context:
    """Returns the context with its own key for part `number`."""
    if context.key is None:
        return context
    return dataclasses.replace(context, key=jax.random.fold_in(context.key, number))


def _scan_in_groups(body: Callable, carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
    """`jax.lax.scan(body, carry, xs)` whose backward pass keeps only the carries before groups of about sqrt(length)
    elements, so that as many carries are kept as are recomputed at once (Chen et al. 2016, sec. 4.1). The rest is a
    group of its own, for which `xs` is copied."""
    size = min(range(1, length + 1), key=lambda n: (-(-length // n) + n, length % n))
    whole = length - length % size

    @jax.checkpoint
    def group(carry: Any, xs: Any) -> tuple[Any, Any]:
        return jax.lax.scan(body, carry, xs)

    groups = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), xs)
    carry, ys = jax.lax.scan(group, carry, groups)
    ys = jax.tree.map(lambda y: y.reshape(whole, *y.shape[2:]), ys)
    if whole == length:
        return carry, ys
    carry, others = group(carry, jax.tree.map(lambda x: x[whole:], xs))
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), ys, others)
