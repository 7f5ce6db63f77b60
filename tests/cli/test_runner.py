"""Exit statuses of all commands. Kills: a traceback at a closed pipe, a defect reported as a user's mistake."""

import io
import os
import resource
import subprocess
import sys
import textwrap

import jax
import pytest

from jaxzoo.cli.runner import Failure, run
from jaxzoo.utils.screen import Screen


def raising(error):
    """Returns a command that raises the error, or succeeds for None."""

    def command(argv):
        assert argv == ["word"]
        if error:
            raise error

    return command


def test_status_and_line(capsys):
    """Kills: an error with another command's status, a message of many lines, success after a failure."""
    for error, status, line in (
        (Failure("two\nlines"), 1, "error: two lines\n"),
        (ValueError("field=0  must be\npositive"), 2, "error: field=0 must be positive\n"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device\n"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: pages"), 1, "error: buy more\n"),
        (MemoryError(), 1, "error: buy more\n"),
        (KeyboardInterrupt(), 130, "stopped\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (SystemExit(0), 0, ""),
        (None, 0, ""),
    ):
        assert run(raising(error), ["word"], interrupted="stopped", out_of_memory="buy more") == status
        assert capsys.readouterr() == ("", line)


def test_a_defect_keeps_its_traceback():
    """Kills: a bug or device failure that is reported as a mistake of the user."""
    for error in (jax.errors.JaxRuntimeError("INTERNAL: x"), TypeError("x"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            run(raising(error), ["word"])
        assert raised.value is error


@pytest.mark.parametrize(
    "program", ["raise RuntimeError('Unknown backend x')", "assert False", "import jax; jax.devices('x')"]
)
def test_an_absent_backend_is_one_line(program, monkeypatch, capsys):
    """Kills: a traceback of JAX, where JAX_PLATFORMS names an unknown backend or the machine has no such device."""
    monkeypatch.setenv("JAX_PLATFORMS", "x")
    code = compile(program, "jax/_src/xla_bridge.py", "exec")
    assert run(lambda _: exec(code), []) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: JAX cannot start with JAX_PLATFORMS='x'.")


@pytest.mark.parametrize(("soft", "hard"), [(16, 16), (64, 64), (16, 4096), (64, -1), (1024, 4096)])
def test_few_open_files(soft, hard, monkeypatch, capsys):
    """Kills: XLA hangs under `ulimit -n 16`; a command that is refused although it may raise the limit."""
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: limits.append(both))
    is_refused = 0 <= hard < 256
    assert run(lambda _: None, []) == (2 if is_refused else 0)
    assert (f"may open {hard} files" in capsys.readouterr().err) == is_refused
    assert limits == ([] if is_refused or soft > 256 else [(256, hard)])


@pytest.mark.parametrize(
    ("encoding", "errors"), [("ascii", "strict"), ("ascii", "surrogateescape"), ("cp1252", "strict")]
)
def test_letters_that_the_output_lacks(encoding, errors, monkeypatch):
    """Kills: an error after generating, where stdout takes ASCII alone (PYTHONIOENCODING, LC_ALL=C) or a code page."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    assert run(lambda _: print("ä漢"), []) == 0
    assert stream.buffer.getvalue().endswith(b"\\u6f22\n")


class Raising:
    def __init__(self, message: str):
        self.message = message

    def __del__(self) -> None:
        raise RuntimeError(self.message)


@pytest.mark.parametrize(("message", "is_told"), [("Event loop is closed", False), ("another", True)])
def test_echoes_of_a_failed_checkpoint_are_left_out(message, is_told, monkeypatch, capsys):
    """Kills: tracebacks of other writer threads before the line about the full disk; other callbacks that are
    silenced."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    assert run(lambda _: None, []) == 0
    Raising(message)
    assert (message in capsys.readouterr().err) is is_told


class Closed(io.StringIO):
    """A stream that fails after its first line, and counts how often."""

    n_failures = 0

    def write(self, text: str) -> int:
        if "\n" in self.getvalue():
            self.n_failures += 1
            raise BrokenPipeError(32, "Broken pipe")
        return super().write(text)


def test_screen_fails_once():
    """Kills: an error that ends the program, and a stream that is tried again at every line."""
    stream = Closed()
    screen = Screen(stream)
    for line in "abc":
        screen.say(line)
    assert stream.getvalue() == "a\n"
    assert stream.n_failures == 1


FULL = pytest.mark.full
COMMANDS = {
    "print": "print('x' * 100)",
    "much": "print('x' * 100_000)",
    "screen": "Screen(sys.stdout).say('x' * 100_000); Screen(sys.stdout).say('x')",
    "broken_while_failing": "print('x'); raise ValueError('y')",
}


def in_shell(command: str, redirection: str) -> tuple[int, str]:
    """Runs a command with redirected output; returns its status and standard error."""
    program = f"""
        import sys
        from jaxzoo.cli.runner import run
        from jaxzoo.utils.screen import Screen
        def command(argv):
            {COMMANDS[command]}
        status = run(command, [])
        assert "jax" not in sys.modules
        raise SystemExit(status)
    """
    shell = ["bash", "-c", f'"$0" -c "$1" {redirection}', sys.executable, textwrap.dedent(program)]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}  # what is printed waits until the end
    done = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False, timeout=60, env=env)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "redirection", "status", "said"),
    [
        ("print", "| true; exit ${PIPESTATUS[0]}", 141, ""),
        pytest.param("much", "| head -c 1 >/dev/null; exit ${PIPESTATUS[0]}", 141, "", marks=FULL),
        pytest.param("screen", "| head -c 1 >/dev/null; exit ${PIPESTATUS[0]}", 0, "", marks=FULL),
        pytest.param("broken_while_failing", "| true; exit ${PIPESTATUS[0]}", 2, "error: y\n", marks=FULL),
        ("print", ">/dev/full", 2, "error: [Errno 28] No space left on device\n"),
        pytest.param("screen", ">/dev/full", 0, "", marks=FULL),
        pytest.param("print", ">&-", 0, "", marks=FULL),
        pytest.param("screen", ">&-", 0, "", marks=FULL),
        pytest.param("broken_while_failing", "2>&-", 2, "", marks=FULL),
    ],
)
def test_output_that_ends_early(command, redirection, status, said):
    """Kills: a traceback or the interpreter's own complaint and status 120 at its end, when it flushes once more."""
    assert in_shell(command, redirection) == (status, said)


@pytest.mark.parametrize(
    "module",
    [
        "jaxzoo.train",
        *(pytest.param(f"jaxzoo.{name}", marks=FULL) for name in ("evaluate", "generate", "tasks", "sweep")),
        pytest.param("benchmarks.generation", marks=FULL),
    ],
)
def test_help_does_not_wait_for_jax(module):
    """Kills: an import at the top of a command's module, for which every --help and every misspelt flag would wait."""
    program = f"""
        import runpy, sys
        sys.argv[1:] = ["--help"]
        try:
            runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
        except SystemExit as stopped:
            assert not stopped.code
        slow = ("jax", "flax", "orbax", "matplotlib", "grain")
        print([name for name in slow if name in sys.modules], file=sys.stderr)
    """
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "[]\n")
    name = module.replace("jaxzoo.", "jaxzoo ") if module.startswith("jaxzoo.") else f"python -m {module}"
    assert f"usage: {name} " in done.stdout
