"""llama.cpp's side of `pretrained_cpu.py`: `python pretrained_cpu_llama.py FILE.gguf`, with the package xllamacpp.

Answers the tasks of `pretrained_cpu_torch.py`, with the quantized weights of the file.
"""

import os
import sys
import time

import xllamacpp  # pyright: ignore[reportMissingImports]


def main(file: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = file
    params.n_ctx, params.n_parallel = 1024, 1
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads, cpu.poll = os.cpu_count(), 0  # waiting threads cost no CPU time
    server = xllamacpp.Server(params)

    def complete(n: int, n_new: int, *, cached: bool) -> None:
        request = {"prompt": [i * 7919 % 49152 for i in range(n)], "max_tokens": n_new, "temperature": 0.0}
        found = server.handle_completions({**request, "cache_prompt": cached, "ignore_eos": True})
        usage = found["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n, n_new), found

    for line in sys.stdin:
        task, n, *rest = line.split()
        if task == "decode":
            complete(int(n), 1, cached=True)
        began = time.perf_counter(), time.process_time()
        complete(int(n), int(rest[0]) if rest else 1, cached=task == "decode")
        print(time.perf_counter() - began[0], time.process_time() - began[1], flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
