"""Based reads the context of MQAR twice, and without a causal mask: 96 tokens, 8 pairs, two passes.

After Just Read Twice (Arora et al. 2024, arXiv 2407.05483). `n_passes` shows the pairs again, in another order, and
`prefix_length` lets all tokens of both passes see one another in the layer of Taylor linear attention. The model is
that of `configs/mqar/based.py`, which reads once. The paper's models, sizes and texts are others.
"""

import dataclasses

from configs.mqar import based
from jaxzoo.tasks import mqar
from jaxzoo.tasks.recall_data import Examples, RecallDataConfig

TASK = mqar.preset(96, 8, n_passes=2)
config = dataclasses.replace(
    based.config,
    model=dataclasses.replace(based.config.model, max_length=TASK.length, prefix_length=TASK.context_length),
    data=RecallDataConfig(
        train=(Examples(task=TASK, n_examples=100_000),),
        valid=(Examples(task=TASK, n_examples=1_000),),
    ),
)
