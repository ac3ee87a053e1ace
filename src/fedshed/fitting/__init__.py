"""From tables to a model with standard errors: `fit`, `Model` and the scikit-learn estimators."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["estimators"])
