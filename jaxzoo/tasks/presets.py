"""The recall data of the papers' figures."""

from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig


def zoology_figure2(length: int) -> RecallDataConfig:
    """Zoology, Figure 2 (Appendix F.1, Experiment 1): one length, 100k training and 3k validation examples (E.2), gap
    law and vocabulary of F.1. The paper does not print the number of pairs; length / 16, and 64 at length 512, are from
    the released configurations (HazyResearch/zoology, `iclr24_zoology_figure2`), whose task, however, is
    `mqar.release(length, n_pairs)`. Raises `ValueError` unless the length is 64, 128, 256 or 512."""
    pairs = {64: 4, 128: 8, 256: 16, 512: 64}
    if length not in pairs:
        raise ValueError(f"zoology_figure2: length={length} must be one of {', '.join(map(str, pairs))}")
    task = mqar.paper(length, pairs[length])
    train = Examples(task=task, n_examples=100_000)
    valid = Examples(task=task, n_examples=3_000)
    return RecallDataConfig(train=(train,), valid=(valid,))


def based_figure2() -> RecallDataConfig:
    """Based, Figures 2 and 3: one mixture for all models, validated far beyond its lengths and pairs. Not printed;
    mixture and task (a = 0.01, distinct values, fillers from the whole vocabulary) are from the released configurations
    (HazyResearch/zoology, `arxiv24_based_figure2`)."""
    mixture = ((64, 4, 100_000), (128, 8, 20_000), (256, 16, 20_000), (256, 32, 20_000), (256, 64, 20_000))
    grid = ((64, 4), (64, 8), (64, 16), (128, 32), (256, 64), (512, 128), (1024, 256))

    def examples(length: int, n_pairs: int, n_examples: int) -> Examples:
        return Examples(task=mqar.release(length, n_pairs, fillers="any"), n_examples=n_examples)

    return RecallDataConfig(
        train=tuple(examples(*sizes) for sizes in mixture),
        valid=tuple(examples(*geometry, 1_000) for geometry in grid),
    )
