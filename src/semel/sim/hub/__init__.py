"""Several nodes of a hub in bad weather: nodes die, the store fails, clients come back elsewhere, services ask."""
