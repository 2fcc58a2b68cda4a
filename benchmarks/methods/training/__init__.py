"""How the rival methods are trained: stacks of networks, a search for penalty and epochs, and one common budget."""
