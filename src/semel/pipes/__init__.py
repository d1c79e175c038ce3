"""Delivery paths: how they are written, what they promise, and the machines that they are made of.

`notation`, `tables` and `compose` make a `path`; `plan` calculates it; `build` turns it into workers and links.
"""
