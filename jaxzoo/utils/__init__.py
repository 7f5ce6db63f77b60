"""Small helpers that every package may import: array types, devices, standard output, whole files, text tables."""
