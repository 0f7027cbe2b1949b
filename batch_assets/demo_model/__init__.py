"""The model of the demo: it comes from the package index as GGUF, and is converted once for vLLM."""
