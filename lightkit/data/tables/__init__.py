"""Tables of images or numbers, in Delta or Parquet, read as a stream."""
