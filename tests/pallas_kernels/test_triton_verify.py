"""`verify` of Triton kernels: a report, its certificate, and its comparison with lowered programs."""

import json
import os

import jax
import pytest

from pallas_kernels import certificates, triton_packages
from pallas_kernels.kernel_sources import kernel_hash
from pallas_kernels.verify import __main__ as command, compare
from tests.pallas_kernels import triton_verify_cases

OP = "short_conv"


@pytest.fixture
def nothing_verified(tmp_path, monkeypatch):
    """Folder of certificates, without any."""
    if (reason := triton_packages.missing()) and os.environ.get("JAXZOO_REQUIRE_AOT") != "1":
        pytest.skip(f"needs the extra triton: {reason}")
    monkeypatch.delenv(certificates.SETTING)
    folder = tmp_path / "certificates"
    folder.mkdir()
    monkeypatch.setattr(certificates, "FOLDER", folder)
    yield folder
    certificates._read.cache_clear()


@pytest.mark.full
def test_a_report_is_a_certificate(nothing_verified, tmp_path, monkeypatch, capsys):
    """Kills Triton cases that are compiled by XLA for a CPU, that run with those of another language, or whose report
    certifies other kernels or GPUs."""
    device = {"platform": "cpu", "device": "an A100", "capability": "8.0", "cores": 108, "jax": jax.__version__}
    monkeypatch.setattr(command, "probe", lambda: device)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    out, module = tmp_path / "verify.json", triton_verify_cases.__name__
    given = ["--cases", module, "--times", module, "--timeout", "120", "--ops", OP, "--out", str(out)]
    assert command.main([*given, "--kernels", "triton"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"an A100, jax {jax.__version__}, kernels ")
    assert [line.split()[0] for line in lines[1:3]] == ["ok", "ok"]
    assert lines[3].startswith("2 of 2 cases are right; written to ")
    assert lines[4] == f"PALLAS_KERNELS={out} makes these kernels the automatic choice on this architecture"
    assert "- language: triton" in command.page_of(out).read_text()
    with certificates.using(str(out)):
        assert certificates.certified("triton") == {("8.0", OP)}
        assert certificates.certified("mosaic") == frozenset()


@pytest.mark.full
def test_reports_of_two_gpus_are_compared(nothing_verified, monkeypatch, capsys):
    """Kills reports whose programs are compared with those for another GPU, and one that is renewed although a program
    differs, or not although none does."""
    case = triton_verify_cases.FEW[0]
    monkeypatch.setitem(compare.CASES, "gpu", [case])
    monkeypatch.setattr(compare, "host_pool", _Pool)
    programs = {gpu: compare.lowered_programs(f"{case.name} on {gpu}") for gpu in ("8.0 108", "8.6 84")}
    assert programs["8.0 108"] != programs["8.6 84"]

    def write(gpu, programs):
        capability, cores = gpu.split()
        report = {"device": "a GPU", "capability": capability, "cores": int(cores), "jax": jax.__version__}
        report |= {"language": "triton", "kernels": {OP: "before"}}
        report["cases"] = [{"case": case.name, "status": "ok", "programs": programs}]
        (nothing_verified / f"{capability}.json").write_text(json.dumps(report))
        certificates._read.cache_clear()

    def hashes():
        return [json.loads(x.read_text())["kernels"][OP] for x in sorted(nothing_verified.iterdir())]

    for gpu in programs:
        write(gpu, programs[gpu])
    write("8.6 84", programs["8.0 108"])
    assert compare.main() == 1
    found = capsys.readouterr()
    assert f"{case.name} on 8.6 84: its kernels differ from the verified ones; run" in found.err
    assert found.out == "1 of 2 cases lower to their verified programs; renewed: []\n"
    assert hashes() == ["before", "before"]
    write("8.6 84", programs["8.6 84"])
    assert compare.main() == 0
    assert capsys.readouterr().out.endswith(
        f"2 of 2 cases lower to their verified programs; renewed: ['{OP} in Triton']\n"
    )
    assert hashes() == [kernel_hash(OP, "triton")] * 2


class _Pool:
    """Maps in this process, whose list of cases is the test's."""

    def __init__(self, processes):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    map = staticmethod(map)
