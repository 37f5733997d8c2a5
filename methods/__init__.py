"""What is compared: one file, or one small package, for each method."""
