"""The caches of Hugging Face Transformers beside cold runs of the same model."""
