"""Studies: many runs each, by one runner that resumes; a study says which jobs it has and what one job computes."""
