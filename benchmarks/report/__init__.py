"""Pages that open offline: all tables and figures of a folder, and what every row answered to each question."""
