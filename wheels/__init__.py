"""Recipes for the arch wheels: pure data, built once for every Python."""
