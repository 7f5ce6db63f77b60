"""Calls of Triton kernels by jax-triton, for NVIDIA GPUs from compute capability 8.0 on.

`run` launches a kernel that is compiled for the GPU for which the program is lowered, present or not. With
TRITON_INTERPRET=1 in the environment before triton is imported, `run` works outside `jax.jit` on a CPU, by Triton's
interpreter, which multiplies no matrices of bfloat16.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from pallas_kernels import dispatch
from pallas_kernels.certificates import LEAST_FOR_TRITON
from pallas_kernels.triton_packages import missing as missing

DTYPES = ("bfloat16", "float16", "float32")
WIDTHS = (16, 32, 64, 128)
"""Key widths of kernels that multiply keys as matrices."""


class Launch(NamedTuple):
    """A kernel launch: pointers to the inputs, then to the outputs, and `constants` by name (`tl.constexpr`).

    None stands for an input or output that the kernel does not touch.
    """

    kernel: Any
    """Function decorated with `triton.jit`."""
    inputs: tuple[jax.Array | None, ...]
    outputs: tuple[jax.ShapeDtypeStruct | None, ...]
    grid: tuple[int, ...]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 1
    aliases: tuple[tuple[int, int], ...] = ()
    """Pairs (place of an input, place of an output) that have the same memory."""


like = jax.ShapeDtypeStruct
triton_launch = Primitive("triton_launch")
triton_launch.multiple_results = True


def run(launch: Launch) -> tuple[Any, ...]:
    """Outputs of the launch: arrays, or None."""
    inputs = (jnp.zeros((1,), jnp.float32) if x is None else x for x in launch.inputs)
    outputs = tuple(like((1,), jnp.float32) if x is None else x for x in launch.outputs)
    static = launch._replace(inputs=(), outputs=outputs, constants=tuple(sorted(launch.constants.items())))
    found = triton_launch.bind(*inputs, launch=static)
    return tuple(None if x is None else y for x, y in zip(launch.outputs, found, strict=True))


def as_rows(function: Callable) -> Callable:
    """The function under `vmap`: a batch of calls is one call with more rows.

    All arrays of operands and results have rows as the first axis.
    """
    call = jax.custom_batching.custom_vmap(function)

    @call.def_vmap
    def _batched(size, is_batched, *operands):
        def rows(x, batched):
            x = x if batched else jnp.broadcast_to(x, (size, *x.shape))
            return x.reshape(-1, *x.shape[2:])

        outputs = call(*jax.tree.map(rows, operands, tuple(is_batched)))
        outputs = jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), outputs)
        return outputs, jax.tree.map(lambda _: True, outputs)

    return call


def capability(device: Any) -> int | None:
    """Compute capability of a GPU, 80 for "8.0"; None: unknown device."""
    found = getattr(device, "compute_capability", None)
    return None if found is None else int(str(found).replace(".", ""))


def unserved(p: Any, widths: tuple[int, ...] = ()) -> str | None:
    """Objection to a dtype or, if there are `widths`, to a key width."""
    if widths and p.k not in widths:
        return f"key width {p.k} is not one of {', '.join(map(str, widths))}"
    return wrong_dtype(p.dtype_name)


def wrong_dtype(*names: str) -> str | None:
    """Objection to the first dtype that is not served."""
    wrong = next((name for name in names if name not in DTYPES), None)
    return None if wrong is None else f"dtype {wrong} is not one of {', '.join(DTYPES)}"


def needs_ampere(problem: Any, device: Any) -> str | None:
    """Objection of Triton kernels to GPUs before Ampere."""
    found = capability(device)
    if found is not None and found < 10 * LEAST_FOR_TRITON:
        return f"the device has compute capability {device.compute_capability}, and the Triton kernels need 8.0"
    return None


@triton_launch.def_abstract_eval
def _outputs(*operands, launch):
    return [jax.core.ShapedArray(x.shape, x.dtype) for x in launch.outputs]


def _lower(ctx, *operands, launch):
    import jax_triton

    @jax.named_scope(launch.kernel.__name__)
    def call(*arrays):
        return jax_triton.triton_call(
            *arrays, kernel=launch.kernel, out_shape=launch.outputs, grid=launch.grid, num_warps=launch.warps,
            num_stages=launch.stages, compute_capability=capability(dispatch.target_device(ctx)),
            input_output_aliases=dict(launch.aliases), **dict(launch.constants),
        )  # fmt: skip

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)


mlir.register_lowering(triton_launch, _lower, platform="cuda")


@functools.partial(jax.jit, static_argnames="launch")
def _compiled(*operands, launch):
    return triton_launch.bind(*operands, launch=launch)


@triton_launch.def_impl
def _run(*operands, launch):
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(launch.kernel, InterpretedFunction):
        return _compiled(*operands, launch=launch)
    return [jnp.asarray(x) for x in interpreted(launch, *operands)]


def interpreted(launch: Launch, *operands: Any) -> list[np.ndarray]:
    """Outputs of a launch without inputs for these inputs, by Triton's interpreter."""
    outputs = [_HostArray(np.full(x.shape, _poison(x.dtype), x.dtype)) for x in launch.outputs]
    inputs = [_HostArray(np.array(x)) for x in operands]
    for given, made in launch.aliases:
        outputs[made] = inputs[given]
    launch.kernel[launch.grid](*inputs, *outputs, **dict(launch.constants))
    return [x.array for x in outputs]


def _poison(dtype: Any) -> Any:
    """Value of memory that a kernel did not write."""
    return np.nan if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


class _HostArray:
    """The attributes of a PyTorch tensor that Triton's interpreter reads, over the memory of a NumPy array."""

    def __init__(self, array: np.ndarray):
        self.array = np.ascontiguousarray(array)
        self.dtype = f"torch.{self.array.dtype}"

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    cpu = untyped_storage

    def new_empty(self, *_, **__):
        return _HostArray(self.array)

    def set_(self, storage, *_):
        self.array = storage.array

    def storage_offset(self):
        return 0

    size = stride = storage_offset

    def copy_(self, _):
        """Does nothing: the kernel wrote to this memory."""
