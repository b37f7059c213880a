"""From a trace of some steps to tables, a verdict, findings and a page. Imports no torch: all of it is read off the
trace that the user gets."""
