"""What llama-server reports: its events, and the causes of lost reuse."""
