"""What a study will take, worked out before anything runs."""
