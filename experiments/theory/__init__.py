"""Theorems of the papers as programs. Each file states one, builds the modules of `jaxzoo.mixers` or `jaxzoo.models`
that it speaks of, and sets their parameters by the proof's construction: nothing is trained."""
