"""Training: link prediction, on polluted text first, then on clean text."""
