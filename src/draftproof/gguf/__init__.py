"""Models in GGUF files, llama.cpp's format: weights, configuration and tokenizer in one file."""
