"""The classroom: release, collect, grade, explain and export the course's assignments with nbgrader.

It needs nbgrader (`pip install "kvlearn[classroom]"`), and nothing of it is imported by `import kvlearn`.
nbgrader keeps the grades and does the grading; these files fit it to this course:

    settings.py   what an instructor may set: classroom/settings.toml
    course.py     nbgrader's folders and gradebook for this course
    collect.py    a folder or a zip of downloads -> classroom/submitted/
    downloads.py  the files of a download, read with suspicion
    repair.py     a submission as it came -> a notebook that nbgrader accepts, and notes to the student
    sandbox.py    the command line that confines a kernel
    execute.py    nbgrader's execution, inside the sandbox
    inside.py     what runs in the kernel: the checks as they were before the student's code
    grade.py      many submissions in parallel, one writer of the gradebook
    feedback.py   a page for each student
    report.py     a report for the instructor: which misconceptions, how many
    export.py     grades as CSV: plain, Canvas, Moodle
    command.py    the commands `kvlearn classroom ...`
"""
