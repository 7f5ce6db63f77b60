"""Float64 truth for Taylor attention: quadratic, with states and decay, and a feature map of its own."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Case(NamedTuple):
    """Float64, rounded to the tested dtype. q, k: (b,t,h,k); v, dy: (b,t,h,v); s: (b,h,f,v); z: (b,h,f)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    s: np.ndarray | None
    z: np.ndarray | None
    decay: np.ndarray | None
    dy: np.ndarray
    ds: np.ndarray
    dz: np.ndarray


def make_case(b, t, h, k, v, dtype, *, seed=0, state=True, decay=False, v_mean=0.0) -> Case:
    """Random everything; but z comes from 40 past keys, since only then is every denominator positive."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.standard_normal(shape)

    def rounded(x, to):
        return np.asarray(jnp.asarray(x, jnp.float32).astype(to).astype(jnp.float32), np.float64)

    q, keys, values, dy = (
        normal(b, t, h, k),
        normal(b, t, h, k),
        normal(b, t, h, v) + v_mean,
        normal(b, t, h, v),
    )
    z = _phi(normal(b, 40, h, k), np).sum(1)
    s, ds, dz = normal(*z.shape, v) * 5, normal(*z.shape, v), normal(*z.shape)
    s, z, ds, dz = (rounded(x, jnp.float32) for x in (s, z, ds, dz))
    q, keys, values, dy = (rounded(x, dtype) for x in (q, keys, values, dy))
    decay = np.linspace(0.9, 1.0, h).astype(np.float32) if decay else None
    return Case(q, keys, values, s if state else None, z if state else None, decay, dy, ds, dz)


def oracle(q, k, v, s=None, z=None, *, decay=None, scale, eps=1e-6, normalize=True, xp=np):
    """-> y (b,t,h,v), final s, final z, den (b,t,h). No chunk and no scan."""
    t, h, key_dim = q.shape[1:]
    decay = np.ones(h) if decay is None else np.asarray(decay, np.float64)
    first, second = np.triu_indices(key_dim)
    squares_halved = np.where(first == second, 0.5, 1.0) * scale**2
    coefficients = np.concatenate([[1.0], np.full(key_dim, scale), squares_halved])
    i = np.arange(t)
    lag = i[:, None] - i
    between = np.where(lag >= 0, decay[:, None, None] ** np.maximum(lag, 0), 0.0)
    since_start, to_end = decay ** (i[:, None] + 1), decay ** (t - 1 - i[:, None])  # (t, h)
    scores = scale * xp.einsum("bihk,bjhk->bhij", q, k)
    p = (1 + scores + scores * scores / 2) * between[None]
    num, den = xp.einsum("bhij,bjhv->bihv", p, v), xp.einsum("bhij->bih", p)
    phi_q, phi_k = _phi(q, xp) * coefficients[None, None, None], _phi(k, xp)
    new_s = xp.einsum("bjhf,bjhv,jh->bhfv", phi_k, v, to_end)
    new_z = xp.einsum("bjhf,jh->bhf", phi_k, to_end)
    if s is not None:
        num = num + xp.einsum("bihf,bhfv,ih->bihv", phi_q, s, since_start)
        den = den + xp.einsum("bihf,bhf,ih->bih", phi_q, z, since_start)
        new_s = new_s + (decay**t)[None, :, None, None] * s
        new_z = new_z + (decay**t)[None, :, None] * z
    y = num / (den + eps)[..., None] if normalize else num
    return y, new_s, new_z, den


def oracle_gradients(case: Case, *, scale, normalize=True) -> dict[str, np.ndarray]:
    """Float64 cotangents of q, k, v, s, z for the case's cotangents of y and of the final state."""
    names = [name for name in ("q", "k", "v", "s", "z") if getattr(case, name) is not None]

    def outputs(*arrays):
        return oracle(*arrays, decay=case.decay, scale=scale, normalize=normalize, xp=jnp)[:3]

    @jax.jit
    def cotangents(arrays, given):
        return jax.vjp(outputs, *arrays)[1](given)

    with jax.enable_x64(True):
        found = cotangents([getattr(case, name) for name in names], (case.dy, case.ds, case.dz))
        return {name: np.asarray(x) for name, x in zip(names, found, strict=True)}


def _phi(x, xp):
    first, second = np.triu_indices(x.shape[-1])
    return xp.concatenate([xp.ones_like(x[..., :1]), x, x[..., first] * x[..., second]], axis=-1)
