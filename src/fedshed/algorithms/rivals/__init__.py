"""Methods of other authors, one file each, on the same protocol, for comparisons and some for use."""
