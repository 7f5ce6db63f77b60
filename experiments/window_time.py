"""Time of sliding window attention by window, on this machine."""

import statistics
import time


def window_time(*, window: int, length: int, batch_size: int, head_dim: int, repeats: int) -> dict[str, float]:
    """Times the forward pass of `sliding_window_attention`, one head, float32, compiled and warm. Returns `seconds` of
    the fastest call, which other work on the machine disturbs least, and `seconds_median`."""
    import jax

    from pallas_kernels.sliding_window import sliding_window_attention

    keys = jax.random.split(jax.random.key(0), 3)
    q, k, v = (jax.random.normal(key, (batch_size, length, 1, head_dim)) for key in keys)
    attend = jax.jit(lambda q, k, v: sliding_window_attention(q, k, v, window=window))
    attend(q, k, v).block_until_ready()
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        attend(q, k, v).block_until_ready()
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "seconds_median": statistics.median(seconds)}
