"""This room reads a configuration file: its syntax, the formats of other clients, references, and exact positions."""
