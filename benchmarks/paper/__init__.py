"""What the paper says: its numbers, and its claims about them."""
