"""What a study says: its settings, the runs they make, and where these keep their files."""
