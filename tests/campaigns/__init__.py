"""Campaigns against real processes: long ones (`make soak`), short ones (`make chaos`), and the processes they start.

The tests run each campaign at a small size; they are no part of the package.
"""
