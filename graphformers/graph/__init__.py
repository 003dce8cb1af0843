"""Graphs and their input: TextGraph, readers of files, and conversion to other libraries."""
