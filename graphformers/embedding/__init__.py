"""Whole graphs to disk: layer states, vectors, and keeping both up to date."""
