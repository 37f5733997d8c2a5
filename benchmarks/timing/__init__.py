"""What training and answering cost: seconds, FLOPs and memory, measured while nothing else runs on the machine."""
