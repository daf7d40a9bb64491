"""The classroom: release, collect, grade, explain and export the course's assignments with nbgrader.

It needs nbgrader (`pip install -e '.[classroom]'` in a clone), and `import kvlearn` imports nothing of it.
nbgrader keeps the grades and does the grading; these files fit it to this course:

    settings.py   what an instructor may set: classroom/settings.toml
    course.py     nbgrader's folders and gradebook for this course
    collect.py    a folder or a zip of downloads -> classroom/submitted/
    downloads.py  the files of a download, read with suspicion
    repair.py     a submission as it came -> a notebook that nbgrader accepts, and notes to the student
    sandbox.py    the walls around a kernel; limits.py, a script, sets what one submission may use up
    execute.py    nbgrader's execution, inside the sandbox
    inside.py     what runs in the kernel: the checks as they were; results.py names what they send
    copies.py     answers that are the library's own
    work.py       one worker, one submission: mended and executed
    grade.py      many submissions in parallel, one writer of the gradebook
    graded.py     what was graded, read back; outcomes.py, what became of each exercise of a notebook;
                  reasons.py, why it is not right, in sentences
    feedback.py   a page for each student; sections.py says where to read, pages.py writes HTML
    report.py     a report for the instructor: which misconceptions, how many; summary.py counts
    export.py     grades as CSV: plain, Canvas, Moodle
    validate.py   for the student: which exercises of a notebook are right; a workflow runs it on each push
    command.py    the commands `kvlearn classroom ...`
"""
