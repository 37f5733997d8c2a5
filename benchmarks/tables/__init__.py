"""The tables of a study, each rendered from its records alone."""
