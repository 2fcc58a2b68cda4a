"""Tables: reading files, columns, units, and the table model that scikit-learn, the command line and the explorer share."""
