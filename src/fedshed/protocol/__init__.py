"""What crosses the wire: messages, their encoding, and how precisely arrays travel."""
