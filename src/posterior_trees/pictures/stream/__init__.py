from posterior_trees.pictures.stream.run import run_stream
from posterior_trees.pictures.stream.stream import Stream
