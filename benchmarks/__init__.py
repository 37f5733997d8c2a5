"""On what, and how, methods are measured. Nothing in here knows a method by name."""
