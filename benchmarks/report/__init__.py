"""The report: all results of a folder on one page."""
