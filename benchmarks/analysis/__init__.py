"""Analysis of what the latents of trained runs carry: patterns of dimensions, interventions, samples, explanations."""
