"""Formats a report of `python -m pallas_kernels.verify` for a terminal and as Markdown."""

from typing import Any


def case_lines(result: dict[str, Any]) -> list[str]:
    """Lines of one case: status, seconds and errors; for a wrong case the place and the results of variants."""
    errors = " ".join(f"{name} {error:.1e}" for name, error in result.get("errors", {}).items())
    lines = [f"{result['status']:9s}{result.get('seconds', 0):6.1f} s  {result['case']}  {errors}".rstrip()]
    if "message" in result:
        lines.append(f"    {result['message']}")
    lines += [f"    {key}: {value}" for key, value in result.get("where", {}).items()]
    lines += [
        f"    with {name}: {x['status']} {x.get('errors', x.get('message'))}"
        for name, x in result.get("variants", {}).items()
    ]
    return lines


def time_line(row: dict[str, Any]) -> str:
    """Line of a timed call."""
    if "ms" not in row:
        return f"{row['call']}: {row['status']}: {row['message']}"
    return f"{row['call']}: {row['ms']:.3f} ms ({row['ms_p10']:.3f} to {row['ms_p90']:.3f})"


def markdown(report: dict[str, Any]) -> str:
    """Page of a report."""
    cases, times = report["cases"], report["times"]
    right = sum(case["status"] == "ok" for case in cases)
    facts = {key: report[key] for key in ("jax", "capability", "cores") if report.get(key) is not None}
    facts |= report["hardware"] | report["versions"] | {"seed": report["seed"]}
    facts |= {f"kernels of {op}": found for op, found in report["kernels"].items()}
    lines = [
        f"# Pallas kernels on {report['device']}: {right} of {len(cases)} cases are right",
        "",
        "Relative L2 errors against float64; `python -m pallas_kernels.verify`.",
        "",
        *(f"- {key}: {value}" for key, value in facts.items()),
        "",
        "| case | status | errors | seconds |",
        "| --- | --- | --- | ---: |",
        *(_row(case) for case in cases),
    ]
    wrong = [case for case in cases if case["status"] != "ok"]
    if wrong:
        lines += ["", "## Not right", "", "```", *(line for case in wrong for line in case_lines(case)), "```"]
    if times:
        lines += ["", "## Times", "", "Milliseconds of a call: median, 10th and 90th percentile.", ""]
        lines += ["| call | measured |", "| --- | ---: |", *(_time_row(row) for row in times)]
    return "\n".join(lines) + "\n"


def _row(case: dict[str, Any]) -> str:
    errors = ", ".join(f"{name} {error:.1e}" for name, error in case.get("errors", {}).items())
    return f"| {case['case']} | {case['status']} | {errors} | {case.get('seconds', '')} |"


def _time_row(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return f"| {row['call']} | {row['status']} |"
    return f"| {row['call']} | {row['ms']:.3f} ({row['ms_p10']:.3f} to {row['ms_p90']:.3f}) |"
