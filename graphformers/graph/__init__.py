"""Graphs, stored and edited, and their input: readers of files, tables in memory, conversion."""
