"""Code that the Python of Spark's workers runs when it starts: see ``sitecustomize``.

Not a part of Iris that anything imports: the folder is in the ``PYTHONPATH`` of these processes.
"""
