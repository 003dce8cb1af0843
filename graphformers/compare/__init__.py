"""Comparison: several methods under one budget, the paper's tables, and a report that says whether
the graph helps.
"""
