"""The soak: a real broker under mixed load and random kills, and the books that must balance. See `scripts/soak`."""
