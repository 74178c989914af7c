"""Stands in for torchvision where it is not installed, so that timm can be imported; nothing in it works.

timm imports names of torchvision for its data pipeline and for detection layers. Its models need none of them.
"""

__version__ = "0.0"
