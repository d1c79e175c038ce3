"""One hub on one node: sessions, groups, delivery, and what several nodes agree on."""
