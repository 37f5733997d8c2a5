"""Processes and what they hold: GPUs, a heartbeat that tells how far they are, notice of being told to go."""
