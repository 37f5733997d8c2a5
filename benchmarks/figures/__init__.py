"""The figures of a study, each drawn from files alone."""
