"""The server: vectors over HTTP, changes that are searchable at once, and a page."""
