"""Parameters carried over from a PyTorch module into ours, and both compared in values and gradients.

A test says how by a function `carry(get)`, where `get(name)` is one of their parameters: it returns ours, by path. It
is called with their parameters, and again with their gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

OUTPUT_TOLERANCE = 1e-5
"""Largest difference of an output, as a share of the largest entry: some roundings of float32, 6e-8 each."""
GRADIENT_TOLERANCE = 1e-4
"""The same of a gradient, which sums over all tokens."""


def randomize(module, torch, *, std=0.4):
    """Noise on every parameter, so that none is 0 or 1."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(std * torch.randn(parameter.shape))


def flat(tree):
    """Leaves by dotted path."""
    return {".".join(map(str, path)): leaf for path, leaf in nnx.to_flat_state(tree)}


def filled(ours, theirs, carry):
    """Returns our module with the peer's parameters; each parameter of both must be used, with its shape."""
    read = set()

    def get(name):
        read.add(name)
        return dict(theirs.named_parameters())[name].detach().numpy()

    values, state = carry(get), nnx.state(ours, nnx.Param)
    unread = {name for name, _ in theirs.named_parameters()} - read
    assert not unread, f"their parameters that nothing reads: {unread}"
    assert values.keys() == flat(state).keys()
    for path, parameter in flat(state).items():
        assert parameter.shape == values[path].shape, path
        parameter[...] = jnp.asarray(values[path].copy())
    nnx.update(ours, state)
    return ours


def assert_close(found, expected, tolerance, what=""):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=what)


def compare(ours, theirs, carry, x, *, run, torch, final=None, gradients=True):
    """Outputs for the inputs `x` (b, t, d), and gradients of inputs and parameters for one random cotangent.

    Args:
      ours: a mixer.
      theirs: a layer.
      carry: the function of the module docstring.
      x: inputs, a float32 array.
      run: their layer's output, given theirs and a tensor.
      torch: the module.
      final: called after `run`: their final state, by field of our state.
      gradients: whether to compare gradients.
    """
    ours = filled(ours, theirs, carry)
    tensor = torch.tensor(x, requires_grad=True)
    expected = run(theirs, tensor)
    if final is not None:
        state = ours.prefill(jnp.asarray(x), ours.init_state(len(x)))[1]
        for name, value in final().items():
            assert_close(getattr(state, name), value.detach().numpy(), OUTPUT_TOLERANCE, f"final {name}")
    if not gradients:
        assert_close(ours(jnp.asarray(x)), expected.detach().numpy(), OUTPUT_TOLERANCE, "output")
        return
    cotangent = torch.randn(expected.shape)
    (expected * cotangent).sum().backward()
    expected_gradients = carry(lambda name: dict(theirs.named_parameters())[name].grad.numpy())

    graph, params, others = nnx.split(ours, nnx.Param, ...)
    y, pull_back = jax.vjp(lambda params, x: nnx.merge(graph, params, others)(x), params, jnp.asarray(x))
    params_gradient, x_gradient = pull_back(jnp.asarray(cotangent.numpy()))
    assert_close(y, expected.detach().numpy(), OUTPUT_TOLERANCE, "output")
    assert_close(x_gradient, tensor.grad.numpy(), GRADIENT_TOLERANCE, "gradient of the input")
    for path, gradient in flat(params_gradient).items():
        assert_close(gradient[...], expected_gradients[path], GRADIENT_TOLERANCE, path)


def inputs(b=3, t=37, d=24, seed=0):
    """Tokens of a layer, float32."""
    return np.random.default_rng(seed).normal(size=(b, t, d)).astype(np.float32)


def token_ids(vocab_size, b=3, t=37, seed=0):
    """Tokens of a model, int32."""
    return np.random.default_rng(seed).integers(vocab_size, size=(b, t)).astype(np.int32)
