"""Recorded results, computed again from the recorded answers."""
