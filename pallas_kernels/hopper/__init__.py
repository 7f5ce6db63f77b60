"""What the Hopper kernels of several ops share: tiles, rings, rows and levels of chunks, inverses."""
