"""Turns, leases and the local worker host."""
