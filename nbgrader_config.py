"""nbgrader reads this file when it is started at the root of the repository.

`nbgrader generate_assignment 01_attention` then makes of `solutions/` what lies in `exercises/`, and
`course/build.py` uses the same settings, so the two cannot differ. What a class hands in, and its grades, lie
in `classroom/`, which git ignores; `kvlearn classroom start` makes it.
"""

from pathlib import Path

c = get_config()  # noqa: F821  (nbgrader puts it there)

c.CourseDirectory.course_id = "kvlearn"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "exercises"
c.CourseDirectory.submitted_directory = "classroom/submitted"
c.CourseDirectory.autograded_directory = "classroom/autograded"
c.CourseDirectory.feedback_directory = "classroom/feedback"
c.CourseDirectory.db_url = f"sqlite:///{Path(__file__).resolve().parent.as_posix()}/classroom/gradebook.db"

# What stands in an exercise where the answer was. The checks know an answer that raises
# NotImplementedError as one that is not written yet.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError"}

# And where an answer in prose was. A cell that still says this when it is graded has no points.
c.ClearSolutions.text_stub = "YOUR ANSWER HERE"

# The longest that a cell of a submission may run, in seconds.
c.ExecutePreprocessor.timeout = 120

# What students wrote is shown in the formgrader as text: nothing of it runs in the page, which could do all
# that you can.
c.HTMLExporter.preprocessors = ["kvlearn.classroom.shown.SanitizeOutputs"]
c.HTMLExporter.filters = {"markdown2html": "kvlearn.classroom.shown.markdown2html"}
