"""On what, and how, methods are measured. Nothing in here knows a method by name, except what is about MarCos alone:
the claims of the paper (`paper`) and what reads its R (`analysis`)."""
