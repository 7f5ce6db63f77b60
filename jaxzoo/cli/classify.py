"""`jaxzoo classify`: finetunes a pretrained language model to classify sequences."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from jaxzoo.cli.flags import UsageError
from jaxzoo.cli.runner import command_line, prepare_jax, say
from jaxzoo.config.checked import Checked, PositiveFloat, PositiveInt, Seed
from jaxzoo.train.run_dir import RunDirectory
from jaxzoo.utils.screen import Screen
from jaxzoo.utils.whole_files import write_json

if TYPE_CHECKING:
    from jaxzoo.data.labelled_sequences import LabelledSequences, LabelledSequencesConfig
    from jaxzoo.train.config import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyCommand(Checked):
    """Finetunes a run on labelled sequences, in the layout of GenomicBenchmarks (SPLIT/CLASS/*.txt) or as
    SPLIT.csv with the columns sequence and label, and scores the split test once, at the end: accuracy with a 95 %
    interval, compared with a logistic regression on k-mers and the share of the largest class. The result is
    RUN_DIR/classification.json; --resume continues a stopped run."""

    run: Path
    """Pretrained run, or RUN:STEP."""
    data: Path
    """Directory of the sequences."""
    run_dir: Path
    """Directory of the finetuning, a run like any other."""
    alphabet: Literal["dna", "bytes"] = "dna"
    """Tokens of the run: bases, or bytes."""
    length: PositiveInt = 512
    """Largest number of tokens per sequence, with the end-of-text; longer ones are cut equally at both ends."""
    pool: Literal["last", "mean"] = "last"
    """Features from which the class is predicted: those at the end-of-text token, or the mean over the sequence."""
    steps: PositiveInt = 500
    """Optimizer steps."""
    batch_size: PositiveInt = 32
    """Sequences per step."""
    learning_rate: PositiveFloat = 6e-4
    """Peak learning rate, after a warmup over a tenth of the steps."""
    reverse_complements: bool = False
    """Read half of the training sequences from the other strand; not if the classes are strands."""
    from_scratch: bool = False
    """Start with random parameters, to measure the effect of pretraining."""
    kmer: PositiveInt = 4
    """k of the baseline."""
    seed: Seed = 0
    """Seed of the order of the sequences."""
    resume: bool = False
    """Continue the finetuning in the directory."""
    overwrite: bool = False
    """Replace what is in the directory."""


@command_line(
    interrupted="interrupted before training began; nothing was written",
    out_of_memory="out of memory; try a smaller --batch-size or --length",
)
def main(command: ClassifyCommand) -> None:
    from jaxzoo.fitting import fit
    from jaxzoo.loading.origin import CheckpointPlace
    from jaxzoo.loading.trained import read_run

    place = CheckpointPlace.parse(str(command.run))
    directory = RunDirectory(command.run_dir.expanduser().absolute())
    if place.is_of(directory.path):
        raise UsageError(f"--run-dir {command.run_dir} is the pretrained run; choose another place")
    prepare_jax()
    _, pretrained = read_run(place.path)
    config = _experiment(pretrained, command)
    run = fit(
        config,
        directory.path,
        name=f"classification of {command.data}",
        resume=command.resume,
        overwrite=command.overwrite,
        init_from=None if command.from_scratch or command.resume else place,
        screen=Screen(sys.stdout),
    )
    if run.step == command.steps:
        _report(config, directory, command)
    else:
        say("stopped; continue with the same command and --resume")


def _experiment(pretrained: "RunConfig", command: ClassifyCommand) -> "RunConfig":
    """Returns the config of the finetuning: the pretrained model, if necessary with a larger `max_length`."""
    from jaxzoo.data.labelled_sequences import LabelledSequencesConfig
    from jaxzoo.train.config import OptimizerConfig, TrainConfig

    model = pretrained.model
    if command.length > model.max_length:
        model = dataclasses.replace(model, max_length=command.length)
    every = max(command.steps // 5, 1)
    return dataclasses.replace(
        pretrained,
        model=model,
        data=LabelledSequencesConfig(
            path=str(command.data.expanduser().absolute()),
            length=command.length,
            alphabet=command.alphabet,
            pool=command.pool,
            reverse_complements=command.reverse_complements,
            seed=command.seed,
        ),
        optimizer=OptimizerConfig(learning_rate=command.learning_rate, final_fraction=0.1),
        train=TrainConfig(
            steps=command.steps,
            batch_size=command.batch_size,
            valid_batch_size=64,
            eval_every=every,
            checkpoint_every=every,
            keep_best=1,
            best_metric="valid/accuracy",
            seed=command.seed,
        ),
    )


def _report(config: "RunConfig", directory: RunDirectory, command: ClassifyCommand) -> None:
    """Scores the test split by the best checkpoint and by the baselines."""
    import jax
    import numpy as np

    from jaxzoo.evals.kmer_model import kmer_features, predict, wilson_interval
    from jaxzoo.evals.validation import Validation
    from jaxzoo.loading.trained import load_variables
    from jaxzoo.train.session import Session

    of_test = cast("LabelledSequencesConfig", dataclasses.replace(config.data, scored="test"))
    session = Session(dataclasses.replace(config, data=of_test))
    data = cast("LabelledSequences", session.dataset)
    _, variables, seal = load_variables(directory, config, "best")
    with jax.set_mesh(session.mesh):
        accuracy = Validation(session).evaluate(variables)["valid/accuracy"]
    test = data.splits["test"]
    fitted = [*data.splits["train"], *data.splits["valid"]]
    labels = np.array([each.label for each in test])
    rows = {"model": round(accuracy * len(test))}
    if command.alphabet == "dna":
        features = [kmer_features([each.text for each in part], command.kmer) for part in (fitted, test)]
        classes = predict(features[0], np.array([e.label for e in fitted]), features[1], n_classes=len(data.classes))
        rows[f"{command.kmer}-mer logistic regression"] = int((classes == labels).sum())
    rows["largest class"] = int(np.bincount(labels).max())
    results = {}
    for name, right in rows.items():
        low, high = wilson_interval(right, len(test))
        results[name] = {"accuracy": right / len(test), "low": low, "high": high}
    report = {"run": str(command.run), "data": str(command.data), "step": seal.step, "n": len(test), "results": results}
    write_json(directory.path / "classification.json", report)
    print(f"test: {len(test):,} sequences of {len(data.classes)} classes, checkpoint {seal.step}")
    for name, row in results.items():
        print(f"  {name:26} accuracy {row['accuracy']:.3f}  95 % interval {row['low']:.3f} to {row['high']:.3f}")
