"""How a trained run answers, and how right its answers are."""
