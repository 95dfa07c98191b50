"""Recordings, replay, and runs that wait for a person or go on after a loss."""
