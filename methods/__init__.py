"""The compared methods, each in a file or a small package of its own, and the code that they share."""
