"""Tables with named columns.

Reading, columns, units, and the one table model behind scikit-learn, the command line and the explorer.
"""
