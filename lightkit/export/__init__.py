"""Models that leave the house: one file each, proved against the module it was made of."""
