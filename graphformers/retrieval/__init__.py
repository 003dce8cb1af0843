"""Search: the nearest nodes of a vector, a text or a node."""
