"""Makes the pictures of docs/images: `scripts/screenshots`."""
