"""What `lint` looks for, one module for each part of a document."""
