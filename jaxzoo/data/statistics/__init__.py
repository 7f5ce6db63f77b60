"""What is counted in tokens: n-grams, repeats, bigrams, distances."""
