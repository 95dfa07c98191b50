"""Where data may go."""
