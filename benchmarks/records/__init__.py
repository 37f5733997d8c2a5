"""Run records: reading them into one data frame, summaries, statistical tests and provenance."""
