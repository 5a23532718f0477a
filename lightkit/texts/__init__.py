"""Texts: their n-grams as numbers, tokenizers, and folders of text files. No torch."""
