"""Code shared by the Hopper kernels of several ops: tiles, rings, rows and levels of chunks, inverses."""
