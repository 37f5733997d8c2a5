"""Training, from settings to weights: one loop for all methods, and its optimizer steps."""
