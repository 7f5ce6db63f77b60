"""Language model of plain Flax NNX with five mixers of jaxzoo, written from docs/your_own_code.md alone: a mesh with
Explicit axes, bfloat16, packed documents, an optimizer of Optax, and decode. `test_outsider.py` runs it."""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

from jaxzoo import shardings, weight_decay_mask
from jaxzoo.mixers import Context, GatedDeltaNet, GatedLinearAttention, Mamba2, RetNet, SlidingWindowAttention

VOCAB, WIDTH, LENGTH, CUT = 61, 32, 24, 14


class Block(nnx.Module):
    def __init__(self, mixer, *, rngs):
        self.norm = nnx.RMSNorm(WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.mixer = mixer
        self.mlp = nnx.Linear(WIDTH, WIDTH, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, x, context):
        x = x + self.mixer(self.norm(x), context)
        return x + jax.nn.gelu(self.mlp(x))

    def step(self, x, state):
        y, state = self.mixer.step(self.norm(x), state)
        return x + y + jax.nn.gelu(self.mlp(x + y)), state


class Model(nnx.Module):
    def __init__(self, *, rngs):
        heads = {"d_model": WIDTH, "n_heads": 2, "dtype": jnp.bfloat16, "rngs": rngs}
        mixers = [
            GatedDeltaNet(**heads),
            Mamba2(d_model=WIDTH, d_state=16, head_dim=16, dtype=jnp.bfloat16, rngs=rngs),
            SlidingWindowAttention(window=8, **heads),
            GatedLinearAttention(**heads),
            RetNet(**heads),
        ]
        self.embed = nnx.Embed(VOCAB, WIDTH, dtype=jnp.bfloat16, rngs=rngs)
        self.blocks = nnx.List(Block(mixer, rngs=rngs) for mixer in mixers)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens, segment_ids, sharding=None):
        x = self.embed(tokens, out_sharding=sharding)
        for block in self.blocks:
            x = block(x, Context(segment_ids=segment_ids))
        return self.head(x)

    def init_states(self, batch_size):
        return [block.mixer.init_state(batch_size, capacity=LENGTH) for block in self.blocks]

    def decode(self, tokens, states, sharding=None):
        """Logits of one token after the other, (t, b, vocab), and the last states."""

        def step(states, token):
            x, new = self.embed(token, out_sharding=sharding), []
            for block, state in zip(self.blocks, states, strict=True):
                x, state = block.step(x, state)
                new.append(state)
            return new, self.head(x)

        states, logits = jax.lax.scan(step, states, tokens.T)
        return logits, states


def distance(a, b):
    """Relative L2 distance."""
    a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@nnx.jit
def train_step(model, optimizer, tokens, segment_ids):
    def loss(model):
        logits = model(tokens, segment_ids, P("data"))
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


model = Model(rngs=nnx.Rngs(0))
tokens = np.asarray(jax.random.randint(jax.random.key(1), (8, LENGTH), 0, VOCAB))
segment_ids = np.broadcast_to(np.arange(LENGTH) // CUT, tokens.shape)
one_document = np.zeros_like(segment_ids)
on_one_device = nnx.jit(lambda model, *inputs: model(*inputs))(model, tokens, one_document)

mesh = jax.make_mesh((4, 2), ("data", "tensor"))
by_rows = NamedSharding(mesh, P("data"))
nnx.update(model, jax.device_put(nnx.state(model), shardings(model, mesh)))
assert "tensor" in model.blocks[0].mixer.q_proj.kernel[...].sharding.spec
with jax.set_mesh(mesh):
    rows, ids, no_ids, states = jax.device_put((tokens, segment_ids, one_document, model.init_states(8)), by_rows)
    others = jax.device_put(np.where(segment_ids, tokens, tokens[::-1]), by_rows)
    forward = nnx.jit(lambda model, *inputs: model(*inputs, P("data")))
    whole = forward(model, rows, no_ids)
    assert whole.sharding.spec[0] == "data"
    assert distance(whole, on_one_device) < 1e-2  # bfloat16 (2^-9) in other fusions, over ten layers

    after = slice(CUT, None)  # the second document, after each of two first ones
    # The same program on the same second documents: what masks and resets exclude is multiplied by an exact 0.
    assert distance(forward(model, others, ids)[:, after], forward(model, rows, ids)[:, after]) == 0
    # Without ids the first document shows: several times the rounding above, so that a leak cannot hide in it.
    assert distance(forward(model, others, no_ids)[:, after], whole[:, after]) > 3e-2

    decode = nnx.jit(lambda model, *inputs: model.decode(*inputs, P("data")))
    logits, states = decode(model, rows, states)
    # Steps round to bfloat16 where chunks do, in another order of summation.
    assert distance(jnp.swapaxes(logits, 0, 1), whole) < 1e-2
    assert all(leaf.sharding.spec[0] == "data" for leaf in jax.tree.leaves(states))

    optimizer = nnx.Optimizer(model, optax.adamw(1e-2, mask=weight_decay_mask(model)), wrt=nnx.Param)
    losses = [float(train_step(model, optimizer, rows, ids)) for _ in range(5)]
    assert losses[-1] < losses[0] - 0.2, losses  # five updates at 1e-2 fit eight rows; no update changes nothing
print(f"five mixers on {mesh.size} devices: loss {losses[0]:.2f} to {losses[-1]:.2f}")
