"""Fixed-size matrix states: linear attention and its relatives."""
