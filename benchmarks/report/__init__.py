"""The report: a results folder on one page."""
