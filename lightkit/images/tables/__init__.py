"""Writing images as a table: the order of its rows, its files, and how they come to be there all at once. No torch."""
