"""Where a run's work is done: the processes that it is given, the GPUs they hold, and what becomes of them."""
