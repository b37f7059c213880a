"""`sftune report`: a run folder as one page."""
