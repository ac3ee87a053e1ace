"""Methods of others, one file each, on the same protocol: to compare with, and some to use."""
