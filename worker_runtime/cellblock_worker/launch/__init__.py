"""Launch starts processes without holding the host's loop, through a small launcher beside it. Start at `launching`."""
