"""From settings to weights: one loop for all methods, and its steps."""
