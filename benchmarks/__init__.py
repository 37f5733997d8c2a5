"""The benchmark suite: what methods are measured on, and how.

It knows no method by name, with the exceptions that CONTRIBUTING.md lists.
"""
