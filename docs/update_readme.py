"""Renews tables and pictures of the pages from runs and benchmark results: `python -m docs.update_readme`.

Reads `runs/mqar-based`, `runs/mqar-attention`, `runs/mqar-base_conv`, `runs/lm-based_tiny`, from
`benchmarks/results` the CPU's and the compilers' reports, the figures in `experiments/results`, and what the commands
of docs/recall.md have written; what is missing keeps its old text. A block stands between the comments `<!-- NAME -->`
and `<!-- /NAME -->`.
"""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import layers, sweep_cpu
from docs import bench_rows, kernel_devices, measured_kernels, text_tables
from pallas_kernels.compile_check import table

RUNS, RESULTS, IMAGES = Path("runs"), Path("benchmarks/results"), Path("docs/images")
FIGURES = Path("experiments/results")
SHOWN = {
    "zoology_figure2/overnight": "Zoology, Figure 2, scale overnight: accuracy by width and length, three seeds",
    "based_figure2/overnight": "Based, Figure 2, scale overnight: accuracy by the bytes of the state, three seeds",
    "cat_figure6/overnight": "CAT, Figure 6, scale overnight: accuracy by the length, three seeds",
}
README, KERNELS = Path("README.md"), Path("pallas_kernels/README.md")
COST, DATA, FINDINGS, GENERATION, RECALL, START, SWEEPS = (
    Path("docs", f"{name}.md") for name in ("cost", "data", "findings", "generation", "recall", "get_started", "sweeps")
)
KERNEL_NOTES, PER_BYTE = Path("docs/kernels.md"), Path("docs/recall_per_byte.md")
RECALL_RUNS = ("mqar-based", "mqar-attention", "mqar-base_conv")
TEXT_RUN = "lm-based_tiny"


def main() -> None:
    """Writes the pages and the pictures next to them."""
    blocks: list[tuple[Path, str, Callable[[], str]]] = [
        (START, "RECALL", recall_table),
        (FINDINGS, "FIGURES", figures_table),
        (PER_BYTE, "ROWS", bench_rows.table),
        (GENERATION, "TEXT", text_table),
        (COST, "CPU", cpu_table),
        (COST, "RECURRENT", recurrent_table),
        (COST, "LAYERS", layers_table),
        (GENERATION, "SAMPLE", sample),
        (GENERATION, "GENERATION", generation_table),
        (KERNELS, "DEVICES", kernel_devices.table),
        (KERNELS, "MEASURED", measured_kernels.table),
        (KERNELS, "COMPILED", compiled_table),
        (KERNELS, "BOUNDS", bounds_table),
        (KERNEL_NOTES, "OPS", ops_table),
        (SWEEPS, "COST", sweep_table),
        (DATA, "TOKEN_INPUT", text_tables.token_input_rate),
        (RECALL, "RECALL_SLICES", text_tables.recall_slices),
        (RECALL, "RECALL_STATISTICS", text_tables.recall_statistics),
        (RECALL, "RECORDS", text_tables.records),
    ]
    for page, name, make in blocks:
        try:
            body = make()
        except FileNotFoundError as error:
            print(f"{name}: kept, {error.filename} is missing")
            continue
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        page.write_text(block.sub(lambda found, body=body: found[1] + body + "\n" + found[2], page.read_text()))


def layers_table() -> str:
    """One layer of each mixer on a GPU, the fastest training pass first."""
    known = json.loads((RESULTS / "on_device-nvidia-h200.json").read_text())
    found = [entry["result"] for name, entry in known.items() if name.startswith("layers: ")]
    rows = [_layer_row(x) for x in sorted(found, key=lambda x: x["gradients"]["median_ms"])]
    head = "| mixer | forward, ms | with gradients, ms | tokens/s | decode step, us, batch 1 | batch 128 |"
    return "\n".join([head, "| --- | ---: | ---: | ---: | ---: | ---: |", *rows])


def _layer_row(x: dict[str, Any]) -> str:
    times = [f"{x[name]['median_ms']:.2f}" for name in ("forward", "gradients")]
    rate = f"{x['gradients']['tokens_per_s'] / 1e6:.1f} million"
    steps = [x.get(f"decode {batch}", {}).get("median_ms") for batch in (1, 128)]
    decode = ["" if ms is None else f"{1e3 * ms / layers.STEPS:.0f}" for ms in steps]
    return f"| {' | '.join([x['mixer'], *times, rate, *decode])} |"


def recall_table() -> str:
    """Accuracy and cost of the MQAR runs."""
    rows = [_recall_row(run) for run in RECALL_RUNS]
    _copy_picture(RECALL_RUNS[0])
    head = "| config | held-out accuracy, 8 pairs | after steps |\n| --- | --- | --- |"
    return "\n".join([head, *rows])


def figures_table() -> str:
    """The figures that were made, what became of their claims, and the pictures of some."""
    rows = []
    for folder in sorted(file.parent for file in FIGURES.glob("**/claims.json")):
        title = (folder / "table.md").read_text().splitlines()[0].removeprefix("# ")
        verdicts = [claim["verdict"] for claim in json.loads((folder / "claims.json").read_text())]
        counts = [str(verdicts.count(verdict)) for verdict in ("held", "not held", "not tested")]
        lines = (folder / "results.jsonl").read_text().splitlines()
        runs = {row["id"]: row for row in map(json.loads, lines)}
        on_gpu = [row for row in runs.values() if row["machine"].startswith("NVIDIA")]
        minutes = sum(row["cpu_seconds"] for row in runs.values() if row not in on_gpu) / 60
        where = f", {len(on_gpu)} runs on an H100" if on_gpu else ""
        about = json.loads((folder / "sweep.json").read_text())
        wanted = about["n_runs"]
        n_runs = f"{len(runs)}" if len(lines) == wanted else f"{len(lines)} of {wanted}"
        lacks = about["untuned"] or "-"
        cells = [f"[{title}](../{folder}/table.md)", *counts, lacks, n_runs, f"{minutes:.0f}{where}"]
        rows.append(f"| {' | '.join(cells)} |")
    for name in SHOWN:
        if not (FIGURES / name).is_dir():
            raise FileNotFoundError(2, "not made yet", str(FIGURES / name))
    head = (
        "| figure (scale) | claims held | not held | not tested | not tuned | runs | CPU-minutes |\n"
        + "| --- " * 7
        + "|"
    )
    pictures = [f"![{text}](../{FIGURES}/{name}/figure.png)\n" for name, text in SHOWN.items()]
    return "\n".join([*pictures, head, *rows])


def sweep_table() -> str:
    """One sweep compared with as many commands, on a CPU."""
    report = json.loads((RESULTS / "sweep_cpu.json").read_text())
    where = f"{report['machine']}, jax {report['versions']['jax']}, {report['date']}, {report['commit']}"
    return f"{sweep_cpu.table(report)}\n\n({where}; `{report['command']}`)"


def text_table() -> str:
    """Bits per byte of the language model next to its baselines."""
    rows = _rows(TEXT_RUN)
    baseline = next(row for row in rows if "baseline/unigram/bits_per_byte" in row)
    last = [row for row in rows if "valid/bits_per_byte" in row][-1]
    _copy_picture(TEXT_RUN)
    return "\n".join(
        [
            "| model | validation bits per byte | perplexity |",
            "| --- | --- | --- |",
            *(
                f"| {name} | {baseline[f'baseline/{name}/bits_per_byte']:.2f} "
                f"| {baseline[f'baseline/{name}/perplexity']:.1f} |"
                for name in ("unigram", "bigram")
            ),
            f"| `configs/lm/based_tiny.py`, {last['step']} steps | {last['valid/bits_per_byte']:.2f} "
            f"| {last['valid/perplexity']:.1f} |",
        ]
    )


def cpu_table() -> str:
    """CPU cost of a training step compared with PyTorch with the same head, and with the authors' code."""
    report = json.loads((RESULTS / "mqar_cpu.json").read_text())
    if "peer_cpu_ms" not in report["rows"][0]:
        raise FileNotFoundError(2, "measured without --peer", f"the peers' column of {RESULTS / 'mqar_cpu.json'}")
    rows, gains = [], {"head": [], "authors": [], "lean": []}
    for row in report["rows"]:
        peers = row["peer_cpu_ms"]
        cells = [row["model"], row["length"], f"{row['cpu_ms']:.0f}"]
        cells += [f"{ms:.0f} ({ms / row['cpu_ms']:.2f}x)" for ms in peers.values()]
        rows.append("| " + " | ".join(map(str, [*cells, row["authors_cpu_ms"]])) + " |")
        gains["head"].append(row["authors_cpu_ms"] / row["authors_gathered_cpu_ms"])
        for forms, ms in peers.items():
            gains[forms].append(ms / row["cpu_ms"])
    head, rest, lean = (f"{min(x):.1f} to {max(x):.1f} times" for x in gains.values())
    columns = (
        "model",
        "tokens",
        "jaxzoo, CPU ms per step",
        "our PyTorch, head at labelled positions",
        "the same, memory kept and best forms",
        "authors' code",
    )
    words = (
        f"The head at labelled positions alone makes the authors' code {head} as fast. Compared with our own\n"
        f"PyTorch with that head and the authors' forms, jaxzoo is {rest} as fast, partly because its\n"
        f"commands keep memory from step to step (`jaxzoo/utils/host_memory.py`); compared with PyTorch with\n"
        f"those settings too, and its best forms, {lean}."
    )
    note = (
        f"({report['device']}, load {report['load']:.0f}, jax {report['versions']['jax']}, torch "
        f"{report['rows'][0]['peer_torch']}, {report['date']}, {report['commit']}; "
        "`python benchmarks/mqar_cpu.py --peer PYTHON`)"
    )
    return "\n".join([f"| {' | '.join(columns)} |", "| --- " * 6 + "|", *rows, "", words, "", note])


def recurrent_table() -> str:
    """CPU cost of recurrent mixers next to plain JAX forms of their recurrences."""
    report = json.loads((RESULTS / "recurrent_cpu.json").read_text())
    lines = ["| mixer | jaxzoo, CPU ms | token by token | in chunks, or associative scan | jaxzoo over the fastest |"]
    for name, times in report["cpu_ms"].items():
        ours, by_token, *rest = times.values()
        cells = (name, *(f"{ms:.0f}" for ms in (ours, by_token)), f"{rest[0]:.0f}" if rest else "-")
        lines.append("| " + " | ".join((*cells, f"{ours / min([by_token, *rest]):.2f}")) + " |")
    lines.insert(1, "| --- " * 5 + "|")
    note = f"({report['device']}, jax {report['jax']}, {report['date']}; `python -m benchmarks.recurrent_cpu`)"
    return "\n".join([*lines, "", note])


def sample() -> str:
    """Output of the page's own command for generation."""
    if not (RUNS / TEXT_RUN).exists():
        raise FileNotFoundError(2, "no such run", str(RUNS / TEXT_RUN))
    (command,) = re.findall(r"^python (-m jaxzoo\.generate .*)$", GENERATION.read_text(), re.MULTILINE)
    text = subprocess.run([sys.executable, *shlex.split(command)], stdout=subprocess.PIPE, text=True, check=True).stdout
    return f"```\n{text.rstrip()}\n```"


def generation_table() -> str:
    """Prefill, decode and state of the models that the benchmark of generation compares, and its picture."""
    name = "generation-20m-cpu"
    report = json.loads((RESULTS / f"{name}.json").read_text())
    rows = []
    for model in report["models"]:
        prefill, steps = (
            [row for row in report[part] if row["model"] == model["model"]] for part in ("prefill", "decode_by_context")
        )
        first, last = (1e3 * row["seconds"] / row["steps"] for row in (steps[0], steps[-1]))
        rows.append(
            f"| {model['model']} | {model['parameters'] / 1e6:.1f}M | {prefill[-1]['tokens_per_second']:,.0f} "
            f"| {first:.1f} | {last:.1f} | {steps[-1]['state_bytes'] / 2**20:.2f} |"
        )
    short, long = steps[0]["context"], steps[-1]["context"]
    head = (
        f"| model | parameters | prefill of {prefill[-1]['length']:,} tokens, tokens/s "
        f"| decode step after a {short:,}-token prompt, ms | after {long:,} tokens, ms "
        f"| state after {long:,} tokens, MiB |\n{'| --- ' * 6}|"
    )
    note = (
        f"({report['device']}, jax {report['versions']['jax']}, {report['date']}, batch {steps[0]['batch']}; "
        "`python -m benchmarks.generation`)"
    )
    picture = f"![Prefill, decode and state of three models](../benchmarks/results/{name}.png)"
    return "\n".join([head, *rows, "", note, "", picture])


def compiled_table() -> str:
    """Table of the compiled kernels: one row per call, one column per target, the largest numbers of its kernels."""
    report = json.loads((RESULTS / "compile_check.json").read_text())
    calls: dict[tuple[str, ...], dict[str, str]] = {}
    for program in report["programs"]:
        call = (program["op"], program["kind"].replace("_", " + "), program["shape"])
        calls.setdefault(call, {})[program["target"]] = _compiled_cell(program["kernels"])
    targets = list(dict.fromkeys(program["target"] for program in report["programs"]))
    head = "| op | pass | shape | " + " | ".join(targets) + " |\n" + "| --- " * (3 + len(targets)) + "|"
    rows = ["| " + " | ".join((*call, *(cells[target] for target in targets))) + " |" for call, cells in calls.items()]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return "\n".join([head, *rows, "", f"({versions}, {report['date']}; `python -m pallas_kernels.compile_check`)"])


def bounds_table() -> str:
    """Table of bounds: one row per call, one column per target: microseconds, share of the floor, and launches."""
    counts = table.read()
    calls: dict[tuple[str, ...], dict[str, str]] = {}
    for name, entry in counts.items():
        op, kind, shape, target = name.split()
        cell = f"{entry['bound']:,.0f} ({entry['floor'] / entry['bound']:.0%}; {entry['launches']})"
        calls.setdefault((op, kind.replace("_", " + "), shape), {})[target] = cell
    targets = list(dict.fromkeys(name.split()[-1] for name in counts))
    head = "| op | pass | shape | " + " | ".join(targets) + " |\n" + "| --- " * 3 + "| ---: " * len(targets) + "|"
    rows = ["| " + " | ".join((*call, *(cells.get(x, "") for x in targets))) + " |" for call, cells in calls.items()]
    compilers = "; ".join(dict.fromkeys(entry["compilers"] for entry in counts.values()))
    return "\n".join([head, *rows, "", f"({compilers}; `python -m pallas_kernels.compile_check`)"])


def ops_table() -> str:
    """Launches and memory traffic of ops in XLA, as compiled."""
    rows = []
    for name, found in json.loads((RESULTS / "op_programs.json").read_text()).items():
        op, kind, target = name.rsplit(" ", 2)
        sizes = (f"{found[part] / 1e9:.2f}" for part in ("bytes", "floor", "temporary"))
        cells = [op, kind.replace("_", " + "), target, f"{found['launches']:,}", *sizes]
        rows.append("| " + " | ".join(cells) + " |")
    head = "| op | pass | target | launches | GB | floor, GB | temporary, GB |\n" + "| --- " * 3 + "| ---: " * 4 + "|"
    return "\n".join([head, *rows])


def _compiled_cell(kernels: list[dict]) -> str:
    if not kernels:
        return "`xla`"
    facts = [f"{len(kernels)} x `{kernels[0]['implementation']}`"]
    found = {name: [k[name] for k in kernels if k[name] is not None] for name in ("registers", "spill_stores", "vmem")}
    if found["registers"]:
        facts.append(f"up to {max(found['registers'])} registers, {max(found['spill_stores'])} bytes spilled")
    if found["vmem"]:
        facts.append(f"{max(found['vmem']) / 2**20:.1f} MiB of VMEM")
    return ", ".join(facts)


def _recall_row(run: str) -> str:
    last = [row for row in _rows(run) if "valid/accuracy" in row][-1]
    config = run.replace("-", "/", 1)
    return f"| `configs/{config}.py` | {last['valid/accuracy/pairs=8']:.3f} | {last['step']} |"


def _rows(run: str) -> list[dict]:
    return [json.loads(line) for line in (RUNS / run / "metrics.jsonl").read_text().splitlines()]


def _copy_picture(run: str) -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(RUNS / run / "learning_curve.png", IMAGES / f"{run}.png")


if __name__ == "__main__":
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()  # there are no options
    main()
