"""The harness: what is wrong is caught and not timed, what cannot run says why, and floors and medians are right."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.benchmark import __main__ as command, checks, environment, programs, run, timing
from pallas_kernels.benchmark.candidates import Candidate
from pallas_kernels.benchmark.ceilings import Ceilings, floor
from pallas_kernels.workload import Workload

CEILINGS = Ceilings(bandwidth=1e9, flops=1e12, matmul="toy")
SETTINGS = run.Settings(seconds=1.0, repeats=5, seeds=None)
TIMING = timing.Timing(median=2e-3, p10=1e-3, p90=3e-3, calls=7, repeats=5)


def toy(t=5, kind="forward", **fields):
    """y = 2 x, by implementations that are right, wrong in one way each, or not to be had."""

    def refuse(x):
        raise NotImplementedError("refused: t is odd")

    def crash(x):
        raise RuntimeError("no such instruction\nand a stack")

    functions = {
        None: lambda x: 2 * x,
        "right": lambda x: x + x,
        "wrong": lambda x: 2 * x.at[-1].mul(1.001),
        "unwritten": lambda x: (2 * x).at[-1, -1].set(jnp.nan),
        "refuse": refuse,
        "crash": crash,
    }
    fields = {
        "op": "toy", "name": f"t{t}", "kind": kind, "sizes": {"b": 3, "t": t}, "build": functions.__getitem__,
        "truth": lambda x: 2 * x,
        "inputs": lambda seed: (jax.random.normal(jax.random.key(seed), (3, t)),), "flops": 4e6, "bytes": 1e6,
    } | fields  # fmt: skip
    return Workload(**fields)


def toy_candidates(*names):
    return [Candidate(name=name, build=lambda workload, name=name: workload.build(name)) for name in names]


@pytest.fixture
def timed(monkeypatch):
    """How often something was timed; nothing is."""
    calls = []

    def measure(batch, **options):
        calls.append(options)
        return TIMING

    monkeypatch.setattr(timing, "measure", measure)
    return calls


def rows_of(*names, workload=None):
    case = run.Case(workload=workload or toy(), groups=("g",))
    return [row for _, row in run.all_rows([case], toy_candidates(*names), CEILINGS, SETTINGS)]


def test_right_candidate_is_timed(timed):
    (row,) = rows_of("right")
    assert (row["status"], row["ms"], row["ms_p10"], row["ms_p90"]) == ("ok", 2.0, 1.0, 3.0)
    assert row["floor_ms"] == 1.0  # 1e6 bytes at 1e9 bytes/s
    assert row["share_of_floor"] == 0.5
    assert row["error"] < 1e-7
    assert len(timed) == 1


def test_workloads_that_are_compiled_together_keep_their_programs(timed, monkeypatch):
    """Kills a program that is timed for another workload or candidate, and a row at another workload's place."""
    monkeypatch.setattr(run, "CASES_AHEAD", {"cpu": 2})
    cases = [run.Case(workload=toy(t), groups=("g",)) for t in (5, 4, 3)]
    found = list(run.all_rows(cases, toy_candidates("right", "wrong"), CEILINGS, SETTINGS))
    assert [(i, row["name"], row["status"]) for i, row in found] == [
        (i, f"t{t}", status) for i, t in enumerate((5, 4, 3)) for status in ("ok", "wrong")
    ]
    assert len(timed) == 3


def test_kernels_of_a_trace_add_up(monkeypatch):
    """Kills nanoseconds for microseconds, a sum over programs or calls, and events of the host."""
    event = lambda name, ns: types.SimpleNamespace(name=name, duration_ns=ns)  # noqa: E731
    line = lambda name, *events: types.SimpleNamespace(name=name, events=events)  # noqa: E731
    device = types.SimpleNamespace(
        name="/device:GPU:0",
        lines=[line("Stream #1", event("a", 6e3), event("b", 9e4), event("a", 6e3)), line("Steps", event("c", 1e9))],
    )
    host = types.SimpleNamespace(name="/host:CPU", lines=[line("Stream #1", event("d", 1e9))])
    data = types.SimpleNamespace(from_file=lambda file: types.SimpleNamespace(planes=[host, device]))
    monkeypatch.setattr(jax.profiler, "ProfileData", data)
    ran = []
    assert timing.kernels(lambda n: ran.append(n) or 0.0, calls=2) == {"b": 15.0, "a": 2.0}
    assert ran == [3]


@pytest.mark.parametrize(("name", "reason"), [("wrong", "relative L2"), ("unwritten", "relative L2 inf")])
def test_wrong_candidate_is_not_timed(timed, name, reason):
    (row,) = rows_of(name)
    assert row["status"] == "wrong"
    assert reason in row["reason"]
    assert "ms" not in row
    assert not timed


def test_refusals_and_failures_cost_no_other_row(timed, capsys):
    refused, failed, right = rows_of("refuse", "crash", "right")
    assert (refused["status"], refused["reason"]) == ("refused", "refused: t is odd")
    assert (failed["status"], failed["reason"]) == ("failed", "RuntimeError: no such instruction")
    assert right["status"] == "ok"
    assert "in crash" in capsys.readouterr().err  # the whole traceback


@pytest.mark.full
def test_tolerance_follows_the_dtype_of_each_output():
    """Kills bfloat16's tolerance for an output in float32, and float32's for a gradient of inputs in bfloat16."""
    y = [np.ones(2, np.float32), np.ones(2, jnp.bfloat16)]
    both = checks.dtypes(toy(), y)
    assert checks.objection([9e-5, 1e-2], True, both) is None
    assert "output 0" in str(checks.objection([3e-4, 1e-2], True, both))
    assert "output 1" in str(checks.objection([9e-5, 3e-2], True, both))
    for kind, dtype, right in (
        ("forward_backward", "bfloat16", True),
        ("forward_backward", "float32", False),
        ("forward", "bfloat16", False),
    ):
        found = checks.dtypes(toy(kind=kind, sizes={"b": 3, "dtype": dtype}), y[:1])
        assert (checks.objection([3e-3], True, found) is None) == right, (kind, dtype)


def test_program_runs_every_call_into_donated_buffers():
    sets = [(jnp.full((4,), float(i)),) for i in range(6)]
    compiled = programs.lower(lambda x: jnp.cos(x), sets[0], 3).compile()
    analysis = compiled.memory_analysis()
    assert analysis.alias_size_in_bytes == 3 * 16
    program = programs.JaxProgram(compiled, sets, 3)
    (first,), finite = program.outputs(np.array([0, 3]))
    np.testing.assert_allclose(first, np.cos([0.0, 0.0]), rtol=1e-6)
    assert finite
    program.batch(1)
    np.testing.assert_allclose(program._outs, np.cos([[i] * 4 for i in (3.0, 4.0, 5.0)]), rtol=1e-6)
    text = programs.lower(lambda x: jnp.cos(x), sets[0], 3).as_text()
    assert text.count("optimization_barrier") == 2


class FakeClock:
    """A program of 2 calls, 3 ms a call, 1 ms a batch; `slow` batches, counted from 0, take 10 times as long."""

    def __init__(self, per_call=3e-3, slow=()):
        self.sizes, self._per_call, self._slow = [], per_call, slow

    def __call__(self, n):
        self.sizes.append(n)
        factor = 10 if len(self.sizes) - 1 in self._slow else 1
        return factor * (2 * self._per_call * n + 1e-3)


@pytest.mark.full
def test_batches_grow_until_they_are_long_enough():
    clock = FakeClock()
    result = timing.measure(clock, calls=2, seconds=2.0, repeats=10)
    n = clock.sizes[-1]
    assert clock.sizes == [1, 10, 37, *[37] * 9]
    assert 2 * 3e-3 * n + 1e-3 >= 0.2
    assert (result.calls, result.repeats) == (2 * n, 10)
    np.testing.assert_allclose([result.median, result.p10, result.p90], 3e-3 + 1e-3 / (2 * n), rtol=1e-12)


@pytest.mark.full
def test_slow_calls_are_repeated_three_times_and_counted_from_the_first():
    clock = FakeClock(per_call=5.0)
    assert timing.measure(clock, calls=2, seconds=2.0, repeats=10).repeats == 3
    assert clock.sizes == [1, 1, 1]


def test_floor_is_the_larger_of_two_times():
    assert floor(toy(flops=4e6, bytes=1e6), CEILINGS) == (1e-3, "memory")
    assert floor(toy(flops=4e9, bytes=1e6), CEILINGS) == (4e-3, "compute")


def fake_command(monkeypatch, *names):
    groups = {"cpu": (toy(), toy(t=4)), "other": (toy(t=9),)}
    monkeypatch.setattr(command, "load", lambda op, part: types.SimpleNamespace(GROUPS=groups))
    monkeypatch.setattr(command.candidates, "known", lambda op, platform: toy_candidates(*names))
    monkeypatch.setattr(command.candidates, "default_names", lambda op, platform: names)
    monkeypatch.setattr(command.ceilings_module, "measure", lambda *a, **k: CEILINGS)


PEERS = """
from pallas_kernels.benchmark.candidates import Candidate, Peers

def peers(op, platform):
    peer = Candidate(name=f"peer of {op} on {platform}", build=lambda workload: workload.build("wrong"))
    return Peers([peer], ["another peer is absent"], {"peer": "1"})
"""


def test_command_writes_what_it_prints(timed, monkeypatch, tmp_path, capsys):
    """Kills a file of peers that is not run, a row that is lost, and an exit status that hides a wrong one."""
    fake_command(monkeypatch, "right", "refuse")
    (tmp_path / "peers.py").write_text(PEERS)
    assert command.main(["toy", "--out", str(tmp_path), "--peers", str(tmp_path / "peers.py")]) == 1
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert path.name == f"toy-{environment.slug(result['device'])}-{result['date']}.json"
    assert [(row["name"], row["status"]) for row in result["rows"]] == [
        (name, status) for name in ("t5", "t4") for status in ("ok", "refused", "wrong")
    ]
    assert result["rows"][2]["implementation"] == "peer of toy on cpu"
    assert (result["notes"], result["versions"]["peer"]) == (["another peer is absent"], "1")
    out = capsys.readouterr().out
    assert "| t5 | forward | right | 2 | 1 to 3 | 50 % |" in out
    assert "| t5 | forward | refuse | refused: refused: t is odd |" in out
    assert command.main(["toy", "--out", str(tmp_path), "--force", "--implementations", "right"]) == 0


BAD = [
    ([], "op is missing: one of taylor_attention, sliding_window"),
    (["nope"], "op='nope' must be one of taylor_attention, sliding_window"),
    (["taylor_attention", "--groups", "nope"], "--groups nope: must be among headline, "),
    (
        ["taylor_attention", "--groups", "cpu", "--implementations", "nope"],
        "--implementations nope: must be among auto, reference, xla",
    ),
    (["taylor_attention", "--kinds", "nope"], "invalid choice: 'nope'"),
    (["taylor_attention", "--repeats", "0"], "0 must be positive"),
    (["taylor_attention", "--peers", "missing.py"], "missing.py"),
    (["--render", "missing.json"], "missing.json"),
]


def test_bad_command_lines_are_one_line(tmp_path, capsys):
    for arguments, message in BAD:
        with pytest.raises(SystemExit, match="2"):
            command.main([*arguments, "--out", str(tmp_path)])
        assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.full
def test_existing_result_is_not_replaced(tmp_path, capsys):
    path = tmp_path / f"taylor_attention-{environment.slug(environment.device_name())}-{environment.today()}.json"
    path.write_text("kept")
    with pytest.raises(SystemExit, match="2"):
        command.main(["taylor_attention", "--out", str(tmp_path)])
    assert f"{path} exists: --force replaces it" in capsys.readouterr().err
    assert path.read_text() == "kept"
