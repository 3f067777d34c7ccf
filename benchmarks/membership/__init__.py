"""Whole realms of the product's own membership machines, simulated on one heap."""
