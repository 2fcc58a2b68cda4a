"""The recipe for tables: networks, hyper-parameters and calibration for data without further knowledge."""
