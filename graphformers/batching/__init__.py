"""From a graph to batches of a network: sampling, tokens, packing and prefetching."""
