"""Training: link prediction, on masked text first, then on clean text."""
