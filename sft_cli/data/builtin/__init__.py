"""What the package ships for its built-in model and data set: the tokenizer of `builtin:tiny-hybrid`."""
