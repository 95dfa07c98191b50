"""The load harness behind `scripts/loadtest`: what the pool costs, beside bare processes and the raw SDK."""
