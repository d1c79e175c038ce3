"""The arithmetic of delivery: what a path of links, retries, dedup and stores promises, and what counts show.

Describe a path with the elements, ask for its `figures`, compare them with `MessageCounts` of what was measured.
"""
