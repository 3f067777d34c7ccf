"""Simulation of whole realms of the product's own membership machines, on one heap."""
