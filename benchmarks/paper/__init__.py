"""The paper's numbers."""
