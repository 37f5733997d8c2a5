"""From settings to weights: one loop for all methods, its steps, and its checkpoints."""
