"""Progress of a run on the screen: one live line on a terminal, plain lines elsewhere, a table at the end."""

import shutil
import time
from collections.abc import Mapping

from jaxzoo.train.speed import Speed
from jaxzoo.utils.screen import Screen

LIVE_SECONDS = 0.1
"""Shortest time between two drawings of the live line."""

PLAIN_SECONDS = 2.0
"""Shortest time between two plain lines of training progress."""

SLICE = "valid/accuracy/"


class Progress:
    """Prints the course of a run of so many steps: on a terminal one line that is drawn over and over, elsewhere plain
    lines, `log_every` steps apart at least."""

    def __init__(self, screen: Screen, *, steps: int, speed: Speed, log_every: int):
        self._screen, self._live = screen, screen.is_terminal
        self._steps, self._speed, self._log_every = steps, speed, log_every
        self._printed = 0.0
        self._valid = ""

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if self._live:
            self._screen.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
        self._screen.say(text)

    def show(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows the metrics of an update where it is time to; those of a validation in the live line, or as a line."""
        if "valid/loss" in metrics:
            self._valid = "valid " + _in_short(metrics)
            if not self._live:
                self.say(f"step {step}/{self._steps}  valid loss {metrics['valid/loss']:.4f}  {_in_short(metrics)}")
            return
        now = time.monotonic()
        if self._live and now - self._printed >= LIVE_SECONDS:
            width = shutil.get_terminal_size().columns - 1
            self._screen.write("\r" + self._line(step, metrics)[:width].ljust(width))
        elif not self._live and step % self._log_every == 0 and now - self._printed >= PLAIN_SECONDS:
            self.say(self._line(step, metrics))
        else:
            return
        self._printed = now

    def _line(self, step: int, metrics: Mapping[str, float]) -> str:
        left = (self._steps - step) / self._speed.steps_per_second(step)
        parts = [
            f"step {step}/{self._steps}",
            f"loss {metrics['loss']:.4f}",
            f"accuracy {metrics['accuracy']:.3f}",
            *([self._valid] if self._valid and self._live else []),
            *self._speed.describe(step),
            f"{duration(left)} left",
        ]
        return "  ".join(parts)


def duration(seconds: float) -> str:
    """`45s`, `3m20s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"


def table(metrics: Mapping[str, float]) -> str:
    """Validation metrics as two columns, slices beneath the whole."""
    rows = [(name.removeprefix("valid/"), value) for name, value in metrics.items() if name.startswith("valid/")]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value:.4f}" for name, value in rows)


def _in_short(metrics: Mapping[str, float]) -> str:
    """Bits per byte; else accuracy by number of pairs, or overall where there are no pairs."""
    if "valid/bits_per_byte" in metrics:
        return f"{metrics['valid/bits_per_byte']:.3f} bits/byte"
    pairs = {k.removeprefix(SLICE): v for k, v in metrics.items() if k.startswith(f"{SLICE}pairs=")}
    if not pairs:
        return f"accuracy {metrics['valid/accuracy']:.3f}"
    return " ".join(f"{name} {value:.3f}" for name, value in pairs.items())
