"""The methods that the studies compare. Each maps a split of a data set, a seed and a device to a forecast."""
