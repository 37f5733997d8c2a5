"""What training and answers cost: seconds, FLOPs and memory, measured alone on the machine."""
