"""Clients and a hub with a network between them that breaks: at any byte, for any time, from one seed.

Both ends are the production machines. What is made up is all between them: sockets, delays, commits that fail, a server
that dies, and the application's own code.
"""
