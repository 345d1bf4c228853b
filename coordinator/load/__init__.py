"""What engines have to do, and how long it takes them: counted, remembered, learned."""
