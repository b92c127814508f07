"""Files of OpenAI's batch format: each line of one becomes a line of another, on this machine.

What is written depends on the input file and on the model, and on nothing else: not on the order in
which lines are done, on what is drafted, or on how often the process was killed on its way.
Knows the bodies and answers of `server`, and an `LLM`; no command line. Imported by `draftproof
batch` alone: its libraries are those of the server.
"""
