"""What turns requests into completions. One file per engine; vLLM and torch are imported only when one opens."""
