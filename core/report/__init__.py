"""A run, several of them, or a sweep as one HTML file: no script, no font, no picture from elsewhere."""
