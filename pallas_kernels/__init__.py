"""Hardware kernels for sequence mixers. Stands alone: imports nothing of jaxzoo."""
