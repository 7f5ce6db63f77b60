"""Work in pieces: shared out among processes and machines, and killed and begun again without loss."""
