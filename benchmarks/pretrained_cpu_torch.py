"""transformers' side of `pretrained_cpu.py`: `python pretrained_cpu_torch.py FOLDER`.

Each line of standard input is a task, answered by one line with wall and CPU seconds:

    prefill N      reading a prompt of N tokens
    decode N T     T greedy tokens after a prompt of N tokens, by the model's own cache
"""

import sys
import time

import torch  # pyright: ignore[reportMissingImports]
from transformers import AutoModelForCausalLM  # pyright: ignore[reportMissingImports]


def main(folder: str) -> None:
    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for line in sys.stdin:
        task, n, *rest = line.split()
        tokens = torch.arange(int(n))[None] * 7919 % 49152
        began = time.perf_counter(), time.process_time()
        out = model(tokens, use_cache=True, logits_to_keep=1)
        if task == "decode":
            began = time.perf_counter(), time.process_time()
            for _ in range(int(rest[0])):
                newest = out.logits[:, -1:].argmax(-1)
                out = model(newest, past_key_values=out.past_key_values, use_cache=True)
        print(time.perf_counter() - began[0], time.process_time() - began[1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
