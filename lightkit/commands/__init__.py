"""The commands that do more than run a stage.

A module each, with one function from the command line to the exit code.

`lightkit.main` names them in its table and imports the one that is asked for.
"""
