"""Statistics of tokens: n-grams, repeats, bigrams, distances."""
