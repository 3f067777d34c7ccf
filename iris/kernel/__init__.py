"""Kernel: errors, names, limits, wire format, transports and links; everything else in Iris rests on it.

It promises that every size and every queue has a bound.  It knows neither who a peer is (iris.security) nor which nodes
there are (iris.cluster), and imports nothing above it.
"""
