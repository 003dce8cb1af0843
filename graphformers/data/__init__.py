"""From files to graphs and splits: readers, the graph, and what a split asks."""
