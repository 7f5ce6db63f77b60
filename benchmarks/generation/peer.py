"""Decode of transformers' Llama, for comparison with Transformer++: `python -m benchmarks.generation.peer --size 360m`.

The same width, layers, heads, MLP and vocabulary, random parameters in bfloat16, and a static cache; a step, with its
greedy draw, is one CUDA graph. Its rotary embedding turns all channels, ours half of them.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

STEPS, REPEATS = 256, 5
"""Steps per timed call, and number of calls; the cache has capacity `Size.generation_length`."""


def main(argv: list[str] | None = None) -> int:
    from benchmarks.generation.models import SIZES

    parser = argparse.ArgumentParser("python -m benchmarks.generation.peer", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="360m", help="default: 360m")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 128], metavar="N", help="default: 1 128")
    parser.add_argument("--out", type=Path, default=Path("peer.json"), metavar="FILE", help="result")
    options = parser.parse_args(argv)
    size = SIZES[options.size]
    rows = [decode(size.models()["Transformer++"], batch, size.generation_length) for batch in options.batches]
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))
    return 0


def decode(config: Any, batch: int, capacity: int) -> dict[str, Any]:
    """Times decode steps of a batch from an empty cache."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    from benchmarks.torch_peers import capture

    cuda = torch.cuda.is_available()
    llama = transformers.LlamaConfig(
        vocab_size=config.padded_vocab_size,
        hidden_size=config.d_model,
        intermediate_size=config.hidden_width,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.pattern[0].n_heads,
        max_position_embeddings=capacity,
        tie_word_embeddings=config.tie_embeddings,
    )
    with torch.device("cuda" if cuda else "cpu"), torch.inference_mode():
        model = transformers.LlamaForCausalLM(llama).to(torch.bfloat16).eval()
        cache = transformers.StaticCache(config=llama, max_cache_len=capacity)
        newest = torch.zeros((batch, 1), dtype=torch.long)

        def step() -> None:
            logits = model(input_ids=newest, past_key_values=cache, use_cache=True).logits[:, -1]
            newest.copy_(logits.argmax(-1, keepdim=True))

        step()
        replay = capture(step) if cuda else step
        steps = min(STEPS, capacity)
        times = []
        for _ in range(REPEATS):
            for layer in cache.layers:
                layer.cumulative_length.zero_()
            start = time.perf_counter()
            for _ in range(steps):
                replay()
            newest.cpu()
            times.append(time.perf_counter() - start)
    seconds = statistics.median(times)
    return {
        "model": "Transformer++ in transformers",
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch": batch,
        "steps": steps,
        "seconds": seconds,
        "tokens_per_second": batch * steps / seconds,
        "versions": {module.__name__: module.__version__ for module in (torch, transformers)},
    }


if __name__ == "__main__":
    raise SystemExit(main())
