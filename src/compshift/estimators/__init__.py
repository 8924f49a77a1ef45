"""scikit-learn estimators for classification under compositional shift."""
