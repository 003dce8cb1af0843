"""From files to neighbourhoods: the graph, its readers, splits, sampling and tokens."""
