"""Work in pieces that processes and machines share, and that survives being killed."""
