"""What the latents of trained runs carry: patterns of their dimensions, interventions, samples, explanations."""
