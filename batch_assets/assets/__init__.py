"""Assets, one file each, in the order of the data. A body reads, calls one function, writes and reports."""
