"""The network, its weights in and out, and encoding in memory."""
