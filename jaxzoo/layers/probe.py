"""Recording and replacing values inside a running model, by name; without a request nothing is computed.

Layers call `show("out", value)` and continue with the result, which is `value` itself outside of a recording. The full
name joins the scopes around the call with dots: `layers.3.mixer.out`. `jaxzoo.capture` is the user's interface.
"""

import contextlib
import contextvars
import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxzoo.utils.array_typing import Array, Float

Replacement = Callable[[Array], Array]
"""Maps a computed value to its replacement."""


@dataclasses.dataclass
class Recording:
    """Requested names, and the values recorded so far."""

    patterns: Sequence[str]
    """Names to record, with the wildcards of `fnmatch`."""
    replace: Mapping[str, Replacement]
    """Replacements by name or pattern."""
    prefix: str = ""
    """Scopes around the current call, each followed by a dot."""
    seen: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Values by full name."""
    replaced: set[str] = dataclasses.field(default_factory=set)
    """Patterns of `replace` that matched a name."""

    def asks_for(self, name: str) -> bool:
        """Whether a pattern matches the full name."""
        return any(fnmatch.fnmatchcase(self.prefix + name, pattern) for pattern in self.patterns)

    def show(self, name: str, value: Any) -> Any:
        """Replaces or records a value on request, and returns it."""
        for pattern, change in self.replace.items():
            if fnmatch.fnmatchcase(self.prefix + name, pattern):
                new = change(value)
                for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(value), strict=True):
                    if (jnp.shape(a), jnp.result_type(a)) != (b.shape, b.dtype):
                        raise ValueError(
                            f"capture: the replacement of {self.prefix + name!r} has shape {jnp.shape(a)} and dtype "
                            f"{jnp.result_type(a)}, and must have {b.shape} and {b.dtype}"
                        )
                value = new
                self.replaced.add(pattern)
        if self.asks_for(name):
            self.seen[self.prefix + name] = value
        return value


_current: contextvars.ContextVar[Recording | None] = contextvars.ContextVar("recording", default=None)


def show(name: str, value: Array) -> Array:
    """Shows a value that the model computes anyway; returns the value or its replacement."""
    current = _current.get()
    return value if current is None else current.show(name, value)


def show_lazily(name: str, make: Callable[[], Any]) -> None:
    """Shows a value that is computed only on request; it cannot be replaced.

    The first of several values with the same name is recorded, so an op built on another op shows its own scores.
    """
    current = _current.get()
    if current is not None and current.asks_for(name) and current.prefix + name not in current.seen:
        with recording(None):
            current.seen[current.prefix + name] = make()


def show_scores(mix: Callable[[Float[Array, "b t g v"]], Float[Array, "b t h v"]], v: Float[Array, "b t g v"]) -> None:
    """Shows `scores` (b, h, t, s): the weight of the value of token s in the output of token t.

    A mixer that is linear in its values is called with unit vectors as values: its outputs are then exactly the
    weights, for any recurrence or kernel.
    """

    def weights() -> Float[Array, "b h t s"]:
        b, t, g, _ = v.shape
        unit = jnp.broadcast_to(jnp.eye(t, dtype=v.dtype)[None, :, None, :], (b, t, g, t))
        return mix(unit).transpose(0, 2, 1, 3)

    show_lazily("scores", weights)


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Context manager: prefixes `name` and a dot to names shown inside."""
    current = _current.get()
    if current is None:
        yield
        return
    outer, current.prefix = current.prefix, f"{current.prefix}{name}."
    try:
        yield
    finally:
        current.prefix = outer


@contextlib.contextmanager
def recording(into: Recording | None) -> Iterator[None]:
    """Context manager: records values shown at trace time into `into.seen`, which the traced function must return."""
    token = _current.set(into)
    try:
        yield
    finally:
        _current.reset(token)


def is_recording() -> bool:
    """Whether values that are shown now are recorded or replaced."""
    return _current.get() is not None
