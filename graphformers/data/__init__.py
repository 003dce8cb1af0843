"""From files to graphs: readers, columns, and the graph itself."""
