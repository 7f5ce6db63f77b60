"""Interpreted Triton kernels inside of compiled programs for a CPU; needs TRITON_INTERPRET=1."""

import functools

import jax
from jax.interpreters import mlir

from pallas_kernels import dispatch, triton_call


def interpret_in_programs() -> None:
    """From now on, kernels that are asked for by name run in programs for this process' CPU, by callbacks."""
    mlir.register_lowering(dispatch.by_target, functools.partial(dispatch._lower, "cuda"), platform="cpu")
    mlir.register_lowering(triton_call.triton_launch, _lower, platform="cpu")


def _lower(ctx, *operands, launch):
    def call(*arrays):
        return jax.pure_callback(functools.partial(triton_call.interpreted, launch), list(launch.outputs), *arrays)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
