"""Hyena as layers of BaseConv, and BaseConv as layers of Hyena (Zoology, Prop. H.12).

The proposition: a Hyena with L gates equals 5 L layers of BaseConv on sequences of N' + N rows, on which the input is
"remembered" below the recurrence; and a BaseConv equals one Hyena. Both directions copy the parameters of our modules.

*Hyena to BaseConv.* The projections are kept in channels here, not in rows, so that each gate is in its own row: width
(L + 1) d for N rows, and L + 3 layers, which is at most 5 L. With z in the block of v, which is the last:

| layers | W, b1 | h, b2 | output |
| --- | --- | --- | --- |
| 1 | W_in, b_in | 0, 1 | `[x^1 .. x^L, v]`, before the short convolution |
| 1 | 0, 1 | the short convolution's | `[x^1 .. x^L, v]` |
| L | from block n to the last; else 0, 1 | h^n in the last; else `e_0`, 0 | `z^n = x^n . (h^n * z^{n-1})` in the last |
| 1 | W_out, b_out | 0, 1 | y in the first block |

The short convolution, which the proof leaves out, is a layer of its own; Hyena's `bias^n` is part of tap 0 of h^n; in
form "release" h^1 is `e_0`. The input is padded with channels of zeros (Definition H.2).

*BaseConv to Hyena.* Form "release" of order 2, `z = x^2 . (h * (x^1 . v))`, with `x^1 = 1, v = u, x^2 = u W + b1`. Any
explicit filter can be expressed by Hyena's network: with one hidden unit per tap and one-hot position features, each
sine is 1 at its own tap and 0 elsewhere, and the last matrix has the taps, divided by the window. As in the proof there
is no b2, since a Hyena adds nothing to a convolution.
"""

import numpy as np

from experiments.theory.base_conv_primitives import impulses
from experiments.theory.parameters import base_conv, write, zeros
from jaxzoo.layers.hyena_filter import HyenaFilterConfig, decay_window
from jaxzoo.mixers import HyenaConfig
from jaxzoo.mixers.conv.base_conv import BaseConv
from jaxzoo.mixers.conv.hyena import Hyena


def to_base_conv(hyena: Hyena) -> list[BaseConv]:
    """Returns the L + 3 layers, for `parameters.apply`."""
    config = hyena.config
    d, order = config.width, config.order
    wide, last = (order + 1) * d, slice(order * d, None)
    nothing, delta = np.zeros((1, wide)), impulses(1, wide, 0)
    in_kernel, out_kernel, out_bias = np.zeros((wide, wide)), np.zeros((wide, wide)), np.zeros(wide)
    in_kernel[:d] = hyena.in_proj.kernel[...]
    out_kernel[last, :d] = hyena.out_proj.kernel[...]
    assert hyena.in_proj.bias is not None
    assert hyena.out_proj.bias is not None
    assert hyena.short_conv.bias is not None
    out_bias[:d] = hyena.out_proj.bias[...]
    short = np.asarray(hyena.short_conv.taps[...]), np.asarray(hyena.short_conv.bias[...])
    layers = [
        base_conv(in_kernel, np.asarray(hyena.in_proj.bias[...]), nothing, np.ones(wide)),
        base_conv(np.zeros((wide, wide)), np.ones(wide), *short),
    ]
    long = np.array(hyena.filter(config.filter_length)).reshape(-1, d, config.n_filters)  # (n_taps, d, filters)
    long[0] += hyena.filter_bias[...]
    filters = list(long.transpose(2, 0, 1))
    if config.form == "release":
        filters = [delta[:, :d], *filters]
    for n, filter in enumerate(filters):
        kernel, bias, taps = np.zeros((wide, wide)), np.ones(wide), impulses(len(filter), wide, 0)
        kernel[n * d : (n + 1) * d, last] = np.eye(d)
        bias[last], taps[:, last] = 0, filter
        layers.append(base_conv(kernel, bias, taps, np.zeros(wide)))
    return [*layers, base_conv(out_kernel, out_bias, nothing, np.ones(wide))]


def to_hyena(base_conv: BaseConv) -> Hyena:
    """Returns one Hyena that equals a BaseConv of form "paper" with an explicit filter and b2 = 0. Raises `ValueError`
    for another form or filter, an activation, or a b2."""
    config = base_conv.config
    config.require("form", config.form == "paper", "must be 'paper'", "Hyena has no residual")
    config.require("filter", config.filter != "implicit", "must be 'short' or 'long'", "its taps are copied")
    config.require("activation", config.activation == "none", "must be 'none'", "Hyena has none")
    if np.any(base_conv.conv_bias[...]):
        raise ValueError("to_hyena: conv_bias must be 0; a Hyena adds nothing to a convolution")
    d, n_taps = config.width, config.filter_length
    emb_dim = max(n_taps + 1 - n_taps % 2, 3)
    network = HyenaFilterConfig(emb_dim=emb_dim, width=n_taps, n_inner=0, sine_frequency=1.0)
    hyena = zeros(Hyena, HyenaConfig(d_model=d, n_taps=n_taps, form="release", n_short_taps=1, filter_network=network))
    assert base_conv.projection.bias is not None
    identity, gate = np.eye(d), np.asarray(base_conv.projection.kernel[...])
    write(hyena.in_proj.kernel, np.concatenate([np.zeros((d, d)), gate, identity], axis=1))
    write(hyena.in_proj.bias, np.concatenate([np.ones(d), np.asarray(base_conv.projection.bias[...]), np.zeros(d)]))
    write(hyena.short_conv.taps, np.ones((1, 3 * d)))
    write(hyena.out_proj.kernel, identity)
    write(hyena.filter.positions, np.eye(n_taps, emb_dim))
    write(hyena.filter.frequency, np.ones(n_taps))
    write(hyena.filter.kernel_in, np.pi / 2 * np.eye(emb_dim, n_taps))
    write(hyena.filter.kernel_out, np.asarray(base_conv.taps[...]) / decay_window(network, n_taps, d))
    return hyena
