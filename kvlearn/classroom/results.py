"""What a graded check says about an answer, as it stands in an executed notebook."""

MIME = "application/vnd.kvlearn.check+json"
