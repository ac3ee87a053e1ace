"""What a site releases: the rules, and the record of what has left."""
