"""benchmarks/records: a record for each processor, and no comparison between two of them."""

import json

from benchmarks import decode, page, records

AMD, INTEL = "AMD EPYC (family 25, model 1, AVX2)", "Intel Xeon (family 6, model 143, AVX512)"


def record(cpu, seconds, date="2026-11-30", cores=2):
    return {"date": date, "machine": {"cpu": cpu, "cores": cores}, "seconds": seconds}


def test_a_record_replaces_only_that_of_its_own_processor(tmp_path):
    """Catches a run on one machine that wipes out, or is mixed with, what another was measured at."""
    path = tmp_path / "decode.json"
    assert records.read(path) == []
    for figures in (record(AMD, 1.0), record(INTEL, 2.0), record(AMD, 3.0, cores=4), record(AMD, 4.0)):
        records.keep(path, figures)
    assert [(r["machine"]["cpu"], r["machine"]["cores"], r["seconds"]) for r in records.read(path)] == [
        (AMD, 2, 4.0),
        (AMD, 4, 3.0),
        (INTEL, 2, 2.0),
    ]


def test_times_of_two_processors_are_never_compared():
    """Catches a regression, or a gain, that is only another machine."""

    def seconds(figures):
        return {"decode at 128": figures["seconds"]}

    said = records.compared([record(INTEL, 1.0)], record(AMD, 2.0), seconds)
    assert AMD in said and INTEL in said and "not compared" in said and "2.00" not in said
    said = records.compared(
        [record(INTEL, 1.0), record(AMD, 4.0, date="2026-11-01")], record(AMD, 5.0), seconds
    )
    assert said == (
        f"Times on this {AMD}, 2 cores, divided by those in its record of 2026-11-01: decode at 128 1.25."
    )
    assert "no processor yet" in records.compared([], record(AMD, 5.0), seconds)


def test_every_record_names_its_processor_and_is_on_the_page():
    """Catches figures that nobody can place, and a page that was not made again after a run."""
    text = (page.HERE / "README.md").read_text(encoding="utf-8")
    for name in page.TABLES:
        held = records.read(page.HERE / f"{name}.json")
        assert held, name
        for figures in held:
            assert figures["machine"]["cpu"] and page.taken(figures) in text
            assert page.TABLES[name](figures) in text


def test_the_times_to_compare_are_those_of_the_cache_that_is_fastest():
    """Catches a comparison of names that no record holds."""
    (figures, *_) = records.read(page.HERE / "decode.json")
    seconds = decode.seconds(json.loads(json.dumps(figures)))
    assert len(seconds) == len(figures["settings"]) * (len(decode.CONTEXTS) + len(decode.PREFILLS))
