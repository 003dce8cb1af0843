"""Comparisons of methods under one training budget, with a report and the tables of the paper."""
