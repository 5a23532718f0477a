"""Rows of tables: their reader, their types, and their preparation for a model.

With numpy and pyarrow, no torch.

`reader` reads rows of every kind of table as a stream. `values` makes numbers, categories, dates
and texts of their cells. A `RowPreprocessing`, which a model has as its attribute
``row_preprocessing``, makes the inputs of the model's ``forward`` of them: in training, in
`predict`, in an exported file and in the server alike.
"""
