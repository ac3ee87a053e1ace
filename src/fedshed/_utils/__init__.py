"""What every layer uses: errors, files that are whole or absent, names, and how figures look."""
