"""Time, memory and accuracy of the library's parts; each module is one benchmark with one result file."""
