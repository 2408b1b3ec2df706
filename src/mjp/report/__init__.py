"""What a person sees of results: tables, figures, and the paper's numbers beside ours."""
