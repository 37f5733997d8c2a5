"""What a study will take, worked out before anything runs; and which few of many things stand for all."""
