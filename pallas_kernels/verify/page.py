"""Formats a report of `python -m pallas_kernels.verify` for a terminal and as Markdown."""

from typing import Any

from pallas_kernels import pages


def case_lines(result: dict[str, Any]) -> list[str]:
    """Lines of one case: status, seconds and errors; for a wrong case the place and the results of variants."""
    errors = _errors(result, " ")
    lines = [f"{result['status']:9s}{result.get('seconds', 0):6.1f} s  {result['case']}  {errors}".rstrip()]
    if "message" in result:
        lines.append(f"    {result['message']}")
    lines += [f"    {key}: {value}" for key, value in result.get("where", {}).items()]
    lines += [
        f"    with {name}: {x['status']} {x.get('errors', x.get('message'))}"
        for name, x in result.get("variants", {}).items()
    ]
    return lines


def milliseconds(row: dict[str, Any]) -> str:
    """Median of a timed call with its 10th and 90th percentile, or its status."""
    return "{ms:.3f} ({ms_p10:.3f} to {ms_p90:.3f})".format(**row) if "ms" in row else row["status"]


def markdown(report: dict[str, Any]) -> str:
    """Page of a report."""
    cases, times = report["cases"], report["times"]
    right = sum(case["status"] == "ok" for case in cases)
    facts = {key: report[key] for key in ("jax", "language", "capability", "cores") if report.get(key) is not None}
    facts |= report["hardware"] | report["versions"] | {"seed": report["seed"]}
    facts |= {f"kernels of {op}": found for op, found in report["kernels"].items()}
    rows = [(x["case"], x["status"], _errors(x, ", "), x.get("seconds", "")) for x in cases]
    lines = [
        f"# Pallas kernels on {report['device']}: {right} of {len(cases)} cases are right",
        "",
        "Relative L2 errors against float64; `python -m pallas_kernels.verify`.",
        "",
        *(f"- {key}: {value}" for key, value in facts.items()),
        "",
        *pages.table(("case", "status", "errors", "seconds:"), rows),
    ]
    wrong = [case for case in cases if case["status"] != "ok"]
    if wrong:
        lines += ["", "## Not right", "", "```", *(line for case in wrong for line in case_lines(case)), "```"]
    if times:
        lines += ["", "## Times", "", "Milliseconds of a call: median, 10th and 90th percentile.", ""]
        lines += pages.table(("call", "measured:"), ((row["call"], milliseconds(row)) for row in times))
    return "\n".join(lines) + "\n"


def _errors(result: dict[str, Any], separator: str) -> str:
    return separator.join(f"{name} {error:.1e}" for name, error in result.get("errors", {}).items())
