"""The figures of a study, each drawn from its result files alone."""
