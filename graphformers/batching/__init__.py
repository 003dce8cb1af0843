"""From a graph to batches of a network: sampling, tokens, packing, and batches made ahead."""
