"""Real sites: what runs at each of them, what runs at the Master, and how a study is set up and started."""
