"""A sweep whose rows are made by hand: two models, two widths, two rates, one seed."""

from jaxzoo.sweep import Change, Claim, Experiment, Finding, Results, Scale, grid, learned
from jaxzoo.sweep.curves import curve
from jaxzoo.sweep.directory import About
from jaxzoo.sweep.report_files import write_report
from jaxzoo.utils.figure import add_legend, panels

ACCURACY = {
    ("attention", 16): (0.5, 0.9),
    ("attention", 32): (1.0, 0.75),
    ("hyena", 16): (0.125, None),
    ("hyena", 32): (0.25, 0.375),
}
"""Accuracy by model and width, at the rates 0.001 and 0.01; None: the run diverged."""
POINTS = grid(model=("attention", "hyena"), d_model=(16, 32), learning_rate=(0.001, 0.01))


def row(point, accuracy, **fields):
    """Row of a run; the id lists the coordinates: `attention-16-0.001`."""
    return {
        "point": point,
        "id": "-".join(str(value) for value in point.values()),
        "status": "finished" if accuracy is not None else "diverged",
        "metrics": {} if accuracy is None else {"valid/accuracy": accuracy, "valid/loss": 1 - accuracy},
        "curve": {
            "train": [(step, 7 / step) for step in range(1, 101)],
            "valid": [(50, 0.0), (100, accuracy or float("nan"))],
        },
        "steps": 100,
        "seconds": 2.0,
        "cpu_seconds": 360.0,
        "flops": 1e9,
        "n_parameters": 1000 * point["d_model"],
        "state_bytes": None if point["model"] == "hyena" else 64 * point["d_model"],
        "config": {},
        "versions": {"jax": "0.10.2"},
        "commit": "abc1234",
        "machine": "two cores",
        "date": "2026-03-04T05:06:07",
        **fields,
    }


def measured(point, **metrics):
    """Row of a measurement."""
    kept = ("id", "status", "seconds", "cpu_seconds", "versions", "commit", "machine", "date")
    made = row(point, 0.0)
    return {"point": point, "metrics": metrics} | {key: made[key] for key in kept}


def rows():
    """Rows of all runs, the last point first."""
    made = []
    for point in POINTS:
        accuracy = ACCURACY[point["model"], point["d_model"]][point["learning_rate"] == 0.01]
        made.append(row(point, accuracy))
    return made[::-1]


def draw(results):
    """Draws accuracy over width, one curve per model."""
    figure, ((panel,),) = panels(1, 1, size=(4, 3), title="small")
    for i, model in enumerate(("attention", "hyena")):
        points = [{"model": model, "d_model": d} for d in results.values("d_model")]
        curve(panel, results, x="d_model", points=points, label=model, series=i)
    add_legend(figure)
    return figure


def beats(better, worse):
    """Claim that one model is better at every width."""

    def holds(results: Results):
        scores = [[results.score(model=name, d_model=d) for name in (better, worse)] for d in (16, 32)]
        return Finding(all(a > b for a, b in scores), "; ".join(f"{a:g} against {b:g}" for a, b in scores))

    name = f"{better}-{worse}"
    return Claim(
        name=name,
        text=f"{better} beats {worse}.",
        quote=f"We see that {better} beats {worse}.",
        source="Paper, Sec. 1",
        rule="No tolerance.",
        controls=(learned(model=better),),
        holds=holds,
        broken_by=(Change({"model": better}, 0.11),),
    )


EXPERIMENT = Experiment(
    title="Paper, Figure 1",
    about="Accuracy over width.",
    scales={},
    claims=(beats("attention", "hyena"), beats("hyena", "attention"), beats("attention", "rwkv")),
    made_up=lambda point: 0.5,
    draw=draw,
    missing=("RWKV: is not there.",),
)


SCALE = Scale(
    about="Width 16 and 32.",
    points=POINTS,
    config=lambda point: None,  # pyright: ignore
    remarks={"hyena-attention": "It is too small."},
)
ABOUT = About(
    "small.py",
    "laptop",
    EXPERIMENT.title,
    EXPERIMENT.about,
    SCALE.about,
    tuple(EXPERIMENT.missing),
    tuple(POINTS[0]),
    8,
)


def report(out, *, experiment=EXPERIMENT, made=None, about=ABOUT, **fields):
    """Writes the report of the rows into a directory and returns it."""
    made = in_order(rows() if made is None else made)
    return write_report(experiment, SCALE, about, made, out, **fields)


def in_order(made):
    """Rows in the order of their points, as `results.jsonl` has them."""
    return sorted(made, key=lambda row: POINTS.index(row["point"]) if row["point"] in POINTS else len(POINTS))
