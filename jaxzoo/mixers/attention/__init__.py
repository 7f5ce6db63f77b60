"""Exact or selected keys: softmax attention over the whole past, over windows, over chosen tokens."""
