"""Training by link prediction: first on masked text, then on clean text."""
