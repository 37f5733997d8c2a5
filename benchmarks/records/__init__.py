"""What stages leave behind, read as one frame, summarised, tested; and what made it."""
