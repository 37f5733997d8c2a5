"""MarCos: a Markov chain of continuous thoughts (Deep Thinking by Markov Chain of Continuous Thoughts)."""

from methods.marcos.method import MarCos

__all__ = ["MarCos"]
