"""Linear algebra over products with a matrix; nothing here knows of networks."""
