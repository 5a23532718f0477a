"""The commands that run no stage: a module each, with one function from the arguments of the command to the exit code.

`lightkit.main` names them in its table and imports the one that is asked for.
"""
