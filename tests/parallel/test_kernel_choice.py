"""The automatic choice of kernels in two processes: the same program in both, or a refusal in both."""

import json

import pytest

from tests.parallel.launch import Launched, free_port


@pytest.mark.slow
def test_two_processes_choose_alike(tmp_path):
    """Kills processes of one job that lower different programs, each of which would wait for the other forever."""
    port = free_port()
    commands = [["-m", "tests.parallel.kernel_choice", str(port), str(i), str(tmp_path)] for i in range(2)]
    processes = Launched(tmp_path, commands)
    try:
        ended = processes.ended(300)
    finally:
        processes.end()
    assert ended.statuses == [0, 0], ended.err
    first, second = (json.loads(text.splitlines()[-1]) for text in ended.out)
    refusals = first.pop("refusal"), second.pop("refusal")
    assert first == second
    kernels = {setting: {count for _, count in found.values()} for setting, found in first.items()}
    assert kernels["nothing"] == {0}
    assert all(0 not in kernels[setting] for setting in ("own report", "all", "shipped"))
    assert refusals[0] == refusals[1]
    assert "process 1 has" in refusals[0]
    assert "start all processes with the same command, settings" in refusals[0]
