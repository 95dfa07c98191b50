"""A package, so that its fixtures can last as long as the folder: one broker and one agent for all its tests."""
