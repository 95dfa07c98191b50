"""Scripts that are kept: their files, who has let them in, and their recordings."""
