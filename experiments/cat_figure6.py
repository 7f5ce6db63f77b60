"""Trained at one length, asked at many: MQAR and MQNAR over the length, a panel a width: CAT, Figure 6.

`jaxzoo sweep --experiment experiments/cat_figure6.py --scale laptop --out sweeps/cat_figure6`

The learning rate is the best one at the trained length; curves and claims are about the
means of its seeds, where the paper shows the best of its runs. YaRN is no training of its own: it is the model with
rotary positions, asked at each longer length with frequencies that are slower by as much. The text of the paper names
Mamba, Based, attention and linear attention, YaRN, and attention without positions; which of them are curves here, and
which positions attention has, it does not say.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from experiments import recall
from experiments.cat import CAT, LIN_CAT, MODELS, TASKS, TWO_HEADS
from experiments.cat_lengths import (
    ASKED,
    CURVES,
    LEARNED,
    NONE,
    RIVALS,
    ROTARY,
    SLOWED,
    YARN,
    alone,
    by_length,
    falls,
    keeps,
    needs_positions,
    trained_length,
)
from experiments.protocol import LAPTOP, OVERNIGHT, PAPER, SEEDS, Protocol
from jaxzoo.layers.rotary_scaling import RotaryScaling
from jaxzoo.mixers import AttentionConfig
from jaxzoo.models import LanguageModelConfig
from jaxzoo.sweep import Change, Claim, Experiment, Missing, Point, Results, Scale, grid, learned
from jaxzoo.sweep.curves import accuracy_label, marked_line
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig
from jaxzoo.train.config import RunConfig
from jaxzoo.utils.figure import TITLE_POINTS, Figure, add_legend, bound_style, panels, plain_log_ticks

POSITIONS = {LEARNED: "learned", ROTARY: "rotary", NONE: "none"}
NAMES = tuple(name for name in CURVES if name != YARN)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    trained: int
    """Length of training examples."""
    asked: Sequence[int]
    """Lengths at which the trained model is validated; includes the trained length."""
    tokens_a_pair: int
    """Length divided by the number of pairs: longer examples ask for more pairs."""
    vocab_size: int
    examples: tuple[int, int, int]
    """Numbers of examples: training, validation, and per length of the further validations."""
    protocol: Protocol

    def config(self, point: Any) -> RunConfig:
        """Returns the run, validated at its own length; the model has room for the longest."""
        train, valid, _ = self.examples
        data = recall.data(self._task(point, self.trained), train=train, valid=valid)
        rate, seed, longest = point["learning_rate"], point["seed"], max(self.asked)
        config = self.protocol.run_preset(_model(point, longest), data, learning_rate=rate, seed=seed)
        learned = None if config.model.max_positions is None else longest
        return dataclasses.replace(
            config, model=dataclasses.replace(config.model, max_length=longest, max_positions=learned)
        )

    def also(self, point: Any) -> dict[str, RunConfig]:
        """Returns validations at all lengths, and with YaRN at each of the longer ones."""
        config = self.config(point)
        found = {ASKED: self._at(config, point, self.asked)}
        for length in self.asked:
            if point["model"] == ROTARY and length > self.trained:
                scaling = RotaryScaling(kind="yarn", factor=length / self.trained, original_length=self.trained)
                pattern = tuple(dataclasses.replace(mixer, rotary_scaling=scaling) for mixer in config.model.pattern)
                slowed = dataclasses.replace(config, model=dataclasses.replace(config.model, pattern=pattern))
                found[SLOWED.format(length)] = self._at(slowed, point, (length,))
        return found

    def _at(self, config: RunConfig, point: Any, lengths: Sequence[int]) -> RunConfig:
        assert isinstance(config.data, RecallDataConfig)
        valid = tuple(Examples(task=self._task(point, n), n_examples=self.examples[2]) for n in lengths)
        return dataclasses.replace(config, data=dataclasses.replace(config.data, valid=valid))

    def _task(self, point: Any, length: int) -> Any:
        return TASKS[point["task"]](length, length // self.tokens_a_pair, self.vocab_size)


def _model(point: Any, length: int) -> LanguageModelConfig:
    name, sizes = point["model"], {"d_model": point["d_model"], "length": length}
    if name not in POSITIONS:
        return MODELS[name](**sizes)
    model = MODELS["attention"](**sizes)
    if name == LEARNED:
        return model
    (mixer,) = model.pattern
    assert isinstance(mixer, AttentionConfig)
    return dataclasses.replace(
        model, pattern=(dataclasses.replace(mixer, positions=POSITIONS[name]),), max_positions=None
    )


PAPERS = Setting(
    trained=128,
    asked=(32, 64, 128, 256, 512, 1024),
    tokens_a_pair=16,
    vocab_size=8192,
    examples=(100_000, 3_000, 1_000),
    protocol=PAPER,
)
LAPTOPS = Setting(
    trained=32,
    asked=(16, 32, 64, 128, 256),
    tokens_a_pair=8,
    vocab_size=320,
    examples=(64 * 1_500, 512, 200),
    protocol=dataclasses.replace(LAPTOP, stop_at_accuracy=0.0),
)
OVERNIGHTS = dataclasses.replace(
    LAPTOPS,
    trained=64,
    asked=(32, 64, 128, 256, 512),
    vocab_size=640,
    examples=(64 * 3_000, 512, 200),
    protocol=dataclasses.replace(OVERNIGHT, stop_at_accuracy=0.0),
)
DEVICES = dataclasses.replace(
    OVERNIGHTS, trained=128, asked=(32, 64, 128, 256, 512, 1024), vocab_size=1024, examples=(64 * 4_000, 512, 200)
)
SMOKES = dataclasses.replace(LAPTOPS, trained=16, asked=(16, 32), vocab_size=64, examples=(192, 64, 64))


def _paper() -> Scale:
    return Scale(
        about="Lengths and widths as in Sec. 6.1, all else as in Zoology, App. E.2. Not printed, and ours: seven "
        "learning rates and five seeds (a denser grid and more trials than in Figure 5), N / 16 pairs.",
        points=grid(
            task=tuple(TASKS),
            d_model=(32, 64, 128),
            model=NAMES,
            learning_rate=tuple(10 ** (-4 + i / 3) for i in range(7)),
            seed=range(5),
        ),
        config=PAPERS.config,
        also=PAPERS.also,
    )


def _points(seeds: Sequence[int]) -> list[Point]:
    return grid(task=tuple(TASKS), d_model=(32, 64), model=NAMES, learning_rate=LAPTOP.learning_rates, seed=seeds)


def _laptop() -> Scale:
    return Scale(
        about="Trained at 32 tokens with 4 pairs and asked at 16 to 256 with N / 8, 320 token ids, widths 32 and 64, "
        "where the paper trains at 128, asks at up to 1,024, and has widths of up to 128 and Zoology's 8,192 ids; "
        "1,500 steps of batch 64, two learning rates, one seed, no MLPs.",
        points=_points((0,)),
        config=LAPTOPS.config,
        also=LAPTOPS.also,
    )


def _overnight() -> Scale:
    return Scale(
        about="Trained at 64 tokens with 8 pairs and asked at 32 to 512 with N / 8, 640 token ids, widths 32 and 64, "
        "where the paper trains at 128, asks at up to 1,024, and has widths of up to 128 and Zoology's 8,192 ids; "
        "3,000 steps of batch 64, two learning rates, three seeds, no MLPs.",
        points=_points(SEEDS),
        config=OVERNIGHTS.config,
        also=OVERNIGHTS.also,
        all_seeds=2,
    )


def _device() -> Scale:
    return Scale(
        about="Trained at 128 tokens with 16 pairs and asked at 32 to 1,024 with N / 8, as the paper and with its "
        "widths, 1,024 token ids; 4,000 steps of batch 64, two learning rates, one seed, no MLPs. For a GPU.",
        points=grid(
            task=tuple(TASKS), d_model=(32, 64, 128), model=NAMES, learning_rate=LAPTOP.learning_rates, seed=(0,)
        ),
        config=DEVICES.config,
        also=DEVICES.also,
    )


def _smoke() -> Scale:
    return Scale(
        about="Three steps of two models: that all of it runs.",
        points=grid(task=("MQAR",), d_model=(16,), model=(CAT, ROTARY), learning_rate=(1e-2,), seed=(0,)),
        config=SMOKES.config,
        also=SMOKES.also,
    )


def draw(results: Results) -> Figure:
    """Draws one row per task, one column per width; a line marks the trained length."""
    tasks, widths = results.values("task"), results.values("d_model")
    size = (1.2 + 3.0 * len(widths), 1.2 + 2.7 * len(tasks))
    title = "Trained at one length, asked at others"
    figure, axes = panels(len(tasks), len(widths), size=size, title=title, sharex=True, sharey=True)
    for row, task in zip(axes, tasks, strict=True):
        for place, width in zip(row, widths, strict=True):
            _draw_curves(place, results, task=task, d_model=width)
            place.set_title(f"{task}, model width {width}", fontsize=TITLE_POINTS)
        row[0].set(ylabel=accuracy_label(results), ylim=(-0.03, 1.03))
    for place in axes[-1]:
        place.set(xlabel="sequence length, tokens")
    add_legend(figure)
    return figure


def _draw_curves(place: Any, results: Results, **where: Any) -> None:
    lengths: Sequence[int] = ()
    guesses: dict[int, float] = {}
    for i, name in enumerate(CURVES):
        try:
            found = by_length(results, name, **where)
        except Missing:
            continue
        lengths, scores = list(found), [score for _, score in found.values()]
        spread = [(score.low, score.high) for score in scores]
        marked_line(place, lengths, [score.mean for score in scores], label=name, series=i, spread=spread)
        for length, (metric, score) in found.items():
            guess = score.rows[0].get("guess", {})
            guesses |= {length: guess[metric]} if metric in guess else {}
    if lengths:
        if guesses:
            place.plot(list(guesses), list(guesses.values()), **bound_style(1), label="guessing")
        place.axvline(trained_length(results), **bound_style(), label="trained")
        plain_log_ticks(place, "x", lengths)


def _claims_on(task: str) -> tuple[Claim, ...]:
    """Returns claims that both tasks share."""
    on, forms = task.lower(), (CAT, TWO_HEADS)
    source = "CAT, Sec. 6.1 and Figure 6"
    maintains = (
        "CAT models maintain 100% accuracy while all other models exhibit a sharp decline in performance as the "
    )
    maintains += "sequence length increases"
    perfect = "Runs end at 0.99, which is 0.985 to two digits."
    return (
        Claim(
            name=f"keeps-{on}",
            text=f"A form of CAT, trained at one length, has 0.985 on {task} at all others, at every width.",
            quote=maintains,
            source=source,
            rule=perfect,
            controls=(learned(model=forms, task=task),),
            holds=lambda results: keeps(results, forms, task),
            broken_by=(Change({"task": task, "model": forms}, 0.9),),
        ),
        Claim(
            name=f"keeps-lin-{on}",
            text=f"LinCAT, which we count among the CAT models, has so as well on {task}.",
            quote=maintains,
            source=source,
            rule=perfect,
            controls=(learned(model=LIN_CAT, task=task),),
            holds=lambda results: keeps(results, (LIN_CAT,), task),
            broken_by=(Change({"task": task, "model": LIN_CAT}, 0.9),),
        ),
        Claim(
            name=f"falls-{on}",
            text=f"On {task} every model of two layers falls to less than half of its accuracy at the trained length.",
            quote=maintains,
            source="CAT, Sec. 6.1",
            rule="Half stands for a sharp decline; widths at which a model has not learned are left out.",
            controls=(learned(model=RIVALS, task=task, each=("model", "d_model")),),
            holds=lambda results: falls(results, task),
            broken_by=(Change({"task": task, "model": "Mamba"}, 0.9),),
        ),
        Claim(
            name=f"alone-{on}",
            text=f"A form of CAT has 0.985 on {task} at every length and width, and no model of two layers has.",
            quote="We find that CAT is the only model that solves AR with length generalization",
            source="CAT, caption of Figure 1",
            rule=perfect + " A model that has learned nowhere is no rival.",
            controls=(learned(model=forms, task=task), learned(model=RIVALS, task=task)),
            holds=lambda results: alone(results, task),
            broken_by=(Change({"task": task, "model": "Mamba"}, 0.995),),
        ),
    )


def _made_up(point: Any) -> dict[str, float]:
    """Values of the paper's figure at some lengths: CAT keeps its accuracy, all others fall."""
    name = point["model"]
    found = {"valid/accuracy": 0.995, "valid/accuracy/length=32": 0.995}
    at = dict.fromkeys((16, 32, 64, 128), 0.995)
    if CAT not in name:
        start = 0.4 if name == NONE else 0.995
        found = dict.fromkeys(found, start)
        at = {16: start, 32: start, 64: start / 2, 128: start / 4}
    found |= {f"{ASKED}/valid/accuracy/length={length}": score for length, score in at.items()}
    if name == ROTARY:
        found |= {f"{SLOWED.format(n)}/valid/accuracy/length={n}": at[n] for n in (64, 128)}
    return found


experiment = Experiment(
    title="CAT, Figure 6",
    about="Models that were trained at one length of MQAR (top) and of MQNAR with 2-grams (bottom), asked at shorter "
    "and longer ones: CAT and LinCAT of one layer, all others of two.",
    scales={"smoke": _smoke, "laptop": _laptop, "overnight": _overnight, "device": _device, "paper": _paper},
    claims=(
        *_claims_on("MQAR"),
        *_claims_on("MQNAR"),
        Claim(
            name="positions",
            text="At the trained length attention without positions is worse than attention with some, at every width.",
            quote="Our AR experiments also corroborate that NoPE by itself is indeed not a viable strategy.",
            source="CAT, Sec. 2",
            rule="More than 0.01, which counts as equal; widths at which it has learned nothing are left out.",
            controls=(
                learned(model=(LEARNED, ROTARY), task="MQAR"),
                learned(model=NONE, task="MQAR", each=("model", "d_model")),
            ),
            holds=lambda results: needs_positions(results, "MQAR"),
            broken_by=(Change({"model": NONE}, 0.995),),
        ),
    ),
    made_up=_made_up,
    draw=draw,
)
