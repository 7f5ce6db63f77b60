"""Synthetic recall tasks: example i is a pure function of (config, seed, i, split).

A task is imported from its own module: this one stays empty, so that `jaxzoo tasks --help` waits for no JAX.
"""
