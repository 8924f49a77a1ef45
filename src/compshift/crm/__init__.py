"""Compositional Risk Minimization on fixed features: the classifier, its two steps, and choosing its settings."""
