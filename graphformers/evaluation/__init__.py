"""Evaluation of link prediction: rankings, metrics, slices, baselines.

Modules that register metrics are imported here.
"""
