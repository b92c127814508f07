"""From a command's options to the folder that is written: one skeleton, a file for each kind."""
