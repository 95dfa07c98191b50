"""The models of a configuration."""
