"""Parts that every layer uses: errors, atomic writes of files, names, and the style of figures."""
