"""The world of the inbox: a broker that delivers at least once, processes that die, and one store for all of them."""
