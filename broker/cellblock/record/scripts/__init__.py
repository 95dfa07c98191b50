"""Scripts that are kept: their files, who has let them in, their recordings, and what has changed for them since."""
