"""Studies: their settings, the runs that follow from them, and where runs keep their files."""
