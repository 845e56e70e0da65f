"""Posterior trees in napari.

reader   a stored tree as layers: its root, and nuclei if they were counted
layers   what napari is told of nodes and nuclei
plane    what is seen of a layer, and where its pixels lie
job      predicting and counting in a thread, with progress, until it is stopped
widget   the window: predict, walk down and up, leaves side by side, save
"""

__version__ = "0.1.0"
