"""Evaluation: how well vectors find links."""
