"""fedshed: second-order federated learning of convex models."""

import lazy_loader

from fedshed._utils.version import __version__ as __version__

# Names are imported when they are first used, so that `import fedshed` and `fedshed --help` are quick;
# __init__.pyi says where each comes from.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
