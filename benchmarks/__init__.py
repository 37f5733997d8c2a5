"""The benchmark suite: what methods are measured on, and how.

No code in this package branches on the name of a method. Names occur in the paper's claims (`tables`), in the analysis
of MarCos's R (`analysis`), and in the wording of tables, figures and plans.
"""
