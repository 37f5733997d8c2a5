"""Evaluation: how a trained run answers, and how accurate its answers are."""
