"""Zoology, Theorem H.21: circuits as BaseConv layers. Kills: a gate computed before its inputs."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.parallel_recall import size
from experiments.theory.circuits import Circuit, compile_channels
from experiments.theory.routed_circuits import RoutedCircuit, route

RNG = np.random.default_rng(0)


def random_circuit(n_inputs, n_gates, n_outputs):
    """Gates that read mostly recent wires, with factors of about 1; the constant 1 is read too."""
    circuit = Circuit(n_inputs)
    for i in range(n_gates):
        n = n_inputs + 1 + i
        left, right = (int(RNG.integers(max(0, n - 9) if RNG.random() < 0.8 else 0, n)) for _ in range(2))
        if RNG.random() < 0.5:
            circuit.product(left, right)
        else:
            circuit.sum(left, right, *RNG.uniform(-1, 1, 2))
    circuit.outputs = [n_inputs + n_gates - i for i in range(n_outputs - 1)] + [0]
    return circuit


def polynomial_product(n):
    """Coefficients of the product of two polynomials of n coefficients, as a tree of sums for each."""
    circuit = Circuit(2 * n)
    for power in range(2 * n - 1):
        terms = [circuit.product(i, n + power - i) for i in range(n) if 0 <= power - i < n]
        while len(terms) > 1:
            pairs = [circuit.sum(a, b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = pairs + terms[2 * len(pairs) :]
        circuit.outputs += terms
    return circuit


def fft(n):
    """Butterfly of Cooley and Tukey on real and imaginary parts: inputs and outputs are n of each."""
    circuit = Circuit(2 * n)

    def transform(real, imaginary):
        m = len(real)
        if m == 1:
            return real, imaginary
        even, odd = transform(real[::2], imaginary[::2]), transform(real[1::2], imaginary[1::2])
        out = [[0] * m, [0] * m]
        for k in range(m // 2):
            c, s = math.cos(2 * math.pi * k / m), -math.sin(2 * math.pi * k / m)
            turned = circuit.sum(odd[0][k], odd[1][k], c, -s), circuit.sum(odd[0][k], odd[1][k], s, c)
            for part in range(2):
                out[part][k] = circuit.sum(even[part][k], turned[part])
                out[part][k + m // 2] = circuit.sum(even[part][k], turned[part], 1, -1)
        return out

    real, imaginary = transform(list(range(n)), list(range(n, 2 * n)))
    circuit.outputs = real + imaginary
    return circuit


def check(circuit, compiled, x, truth, *, tolerance):
    """The circuit against the truth, the layers against the circuit."""
    expected = circuit(x)
    np.testing.assert_allclose(expected, truth, rtol=1e-12, atol=1e-12)
    y = jax.jit(compiled.__call__)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))


def test_routing():
    """Kills: a Benes loop that closes wrongly, copies of the wrong row, sources that are read by none or by all."""
    for n in (2, 4, 8, 32):
        u = RNG.normal(size=n)
        for sources in (RNG.permutation(n), RNG.integers(-1, n, n), np.full(n, n - 1), np.arange(n)):
            y = u
            factors = route(sources)
            for factor in factors:
                y = factor(y)
            read = sources >= 0
            np.testing.assert_array_equal(y[read], u[sources[read]])
            assert len(factors) <= 5 * math.log2(n) - 2


def test_channels():
    """Kills: in `compile_channels`: a factor of the wrong product, a sum of sums, a wire kept a stage too short."""
    circuit = random_circuit(5, 60, 4)
    x = RNG.uniform(-1, 1, (3, 5))
    compiled = compile_channels(circuit)
    check(circuit, compiled, x, circuit(x), tolerance=1e-5)
    assert compiled.layers[0].config.width <= 3 * size(circuit).w
    a, b = RNG.normal(size=(2, 3, 6))
    truth = np.stack([np.convolve(p, q) for p, q in zip(a, b, strict=True)])
    product = polynomial_product(6)
    check(product, compile_channels(product), np.concatenate([a, b], 1), truth, tolerance=1e-5)
    assert len(compile_channels(product).layers) == 3
    z = RNG.normal(size=(3, 8)) + 1j * RNG.normal(size=(3, 8))
    truth = np.fft.fft(z)
    transform = fft(8)
    x, truth = (np.concatenate([v.real, v.imag], 1) for v in (z, truth))
    check(transform, compile_channels(transform), x, truth, tolerance=1e-5)
    assert len(compile_channels(transform).layers) == 1


@pytest.mark.parametrize(
    "name", ["random", pytest.param("polynomial", marks=pytest.mark.full), pytest.param("fft", marks=pytest.mark.full)]
)
def test_rows(name):
    """Theorem H.21. Kills: a window read at the wrong rows, a gate of another level, a stage of the network."""
    if name == "random":
        circuit = random_circuit(3, 16, 6)
        x = RNG.uniform(-1, 1, (2, 3))
        truth = circuit(x)
    elif name == "polynomial":
        circuit, (a, b) = polynomial_product(4), RNG.normal(size=(2, 2, 4))
        x, truth = np.concatenate([a, b], 1), np.stack([np.convolve(p, q) for p, q in zip(a, b, strict=True)])
    else:
        circuit, z = fft(8), RNG.normal(size=(2, 8)) + 1j * RNG.normal(size=(2, 8))
        x, truth = (np.concatenate([v.real, v.imag], 1) for v in (z, np.fft.fft(z)))
    compiled, counted = RoutedCircuit(circuit), size(circuit)
    check(circuit, compiled, x, truth, tolerance=3e-6 * compiled.n_layers)  # each layer is two transforms in float32
    log_w = math.log2(compiled.rows)
    assert compiled.n_layers <= (10 * log_w - 1) * (counted.levels + 1)
    assert compiled.rows <= 4 * counted.w
    assert compiled.delay <= 4 * compiled.rows * (counted.levels + 1)
    assert compiled.width == compiled.rows + 3
