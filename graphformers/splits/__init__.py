"""Links held out from a graph: training, validation and test links, and candidate lists."""
