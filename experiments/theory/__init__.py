"""Theorems of the papers as programs. Each file states a theorem, builds its modules from `jaxzoo.mixers` or
`jaxzoo.models`, and sets their parameters by the proof's construction: nothing is trained."""
