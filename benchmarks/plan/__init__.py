"""Estimates of what a study will take, made before anything runs."""
