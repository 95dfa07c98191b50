"""How a configuration file is read: its syntax, the formats of other clients, references, and exact positions."""
