"""The way into a command: Ctrl-C before it runs."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import os, signal, sys, types
    from jaxzoo.cli.door import enter

    signal.signal(signal.SIGINT, signal.default_int_handler)
    stub = sys.modules["jaxzoo.cli.stub"] = types.ModuleType("stub")
    stub.main = lambda: {main}
    enter("stub")
"""

SWALLOWS = """
    import os, signal, time
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(9)
    except KeyboardInterrupt:
        raise ImportError("extension") from None
"""


@pytest.mark.parametrize(
    ("main", "outcome"),
    [
        ("__import__('swallows')", (130, "interrupted\n")),
        pytest.param("os.kill(os.getpid(), signal.SIGINT)", (130, "interrupted\n"), marks=pytest.mark.full),
        pytest.param("3", (3, ""), marks=pytest.mark.full),
    ],
)
def test_ctrl_c_is_one_line(main, outcome, tmp_path):
    """Kills: a traceback through imports; an interruption that an extension turns into an ImportError of many lines."""
    (tmp_path / "swallows.py").write_text(textwrap.dedent(SWALLOWS))
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + textwrap.dedent(PROGRAM).format(main=main)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == outcome


@pytest.mark.full
@pytest.mark.parametrize("module", ["jaxzoo.train", "jaxzoo.generate", "jaxzoo.sweep"])
def test_nothing_is_imported_before_the_door(module):
    """Kills: an import beside the door, which Ctrl-C would end with a traceback."""
    program = f"""
        import sys
        from jaxzoo.cli import door
        before = set(sys.modules)
        def enter(name):
            print(sorted(n for n in set(sys.modules) - before if "jaxzoo" in n or "." not in n))
            raise SystemExit(0)
        door.enter = enter
        import runpy
        before = set(sys.modules)
        runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    package = [] if module == "jaxzoo.generate" else [module]
    assert (done.returncode, done.stdout) == (0, f"{package}\n"), done.stderr
