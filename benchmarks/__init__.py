"""The benchmark suite: what methods are measured on, and how.

Nothing in this package refers to a method by name, except the parts that are about MarCos alone: the claims of its
paper (`paper`) and the analysis of its R (`analysis`).
"""
