"""What a site lets out: the rules, and the record of what has left."""
