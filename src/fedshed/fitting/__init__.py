"""From tables to a model with standard errors: `fit`, `Model` and the scikit-learn estimators."""
