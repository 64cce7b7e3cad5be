"""Counts single cases in what ctest kept of a run (JUnit files): Criterion's and unittest's, else one per program.

    python3 tests/summary.py build/check.xml …

Prints a line per program, every failed and skipped case by name (a skipped one with its reason), and last, alone on its
line, `N passed, N failed, N skipped`. Exit 1 if a case failed or a file is missing.
"""
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

SYNTHESIS = re.compile(r"\[====\] Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+)")
CRITERION_CASE = re.compile(r"^\[(FAIL|SKIP)\] (\S+?): (.*)$", re.M)
RAN = re.compile(r"^Ran (\d+) tests? in ", re.M)
UNITTEST_SKIP = re.compile(r"^(\w+) \([\w.]+\)(?:\n[^\n]*)? \.\.\. skipped (['\"])(.*)\2$", re.M)
N_SKIPPED = re.compile(r"^(?:OK|FAILED) \(.*skipped=(\d+)", re.M)
UNITTEST_BAD = re.compile(r"^(?:FAIL|ERROR): (\w+) \(([\w.]+)\)", re.M)
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def criterion(output):
    """Failed and skipped cases by name, and how many passed; None if this is no Criterion program."""
    total = SYNTHESIS.search(output)
    if not total:
        return None
    failed = [name for kind, name, _ in CRITERION_CASE.findall(output) if kind == "FAIL"]
    skipped = [f"{name}: {why}" for kind, name, why in CRITERION_CASE.findall(output) if kind == "SKIP"]
    failed += ["a case"] * (int(total[3]) - len(failed))
    return int(total[2]), failed, skipped


def unittest(output):
    total = RAN.search(output)
    if not total:
        return None
    bad = {(name, where) for name, where in UNITTEST_BAD.findall(output)}
    failed = sorted(f"{where.rpartition('.')[2]}.{name}".replace(f"{name}.{name}", name) for name, where in bad)
    skipped = [f"{name}: {why}" for name, _, why in UNITTEST_SKIP.findall(output)]
    n_skipped = N_SKIPPED.search(output)
    skipped += ["a case"] * ((int(n_skipped[1]) if n_skipped else 0) - len(skipped))
    in_total = sum(not name.endswith(("Class", "Module")) for name, _ in bad) + len(skipped)
    return max(0, int(total[1]) - in_total), failed, skipped


def count(case):
    """(passed, failed names, skipped names) of one program that ctest ran."""
    output = ANSI.sub("", case.findtext("system-out") or "")
    status = case.get("status")
    if status in ("notrun", "disabled"):
        reason = case.find("skipped")
        why = reason.get("message", "not run") if reason is not None else "not run"
        return (0, [], [why]) if status == "disabled" or "SKIP" in why else (0, [why], [])
    result = criterion(output) or unittest(output) or (int(status == "run"), [], [])
    if status == "fail" and not result[1]:
        failure = case.find("failure")
        result = (result[0], [f"the program itself: {failure.get('message') if failure is not None else 'failed'}"], result[2])
    return result


def main(paths):
    n_passed, failed, skipped, lost = 0, [], [], []
    for path in paths:
        try:
            cases = xml.parse(path).getroot().iter("testcase")
        except (OSError, xml.ParseError) as problem:
            lost.append(f"{path}: {problem}")
            continue
        build = Path(path).parent.name + "/" if len(paths) > 1 else ""
        for case in cases:
            passed, bad, left_out = count(case)
            program = build + case.get("name")
            n_passed += passed
            failed += [f"{program}: {name}" for name in bad]
            skipped += [f"{program}: {name}" for name in left_out]
            print(f"{program:36} {float(case.get('time') or 0):8.1f} s  {passed:4} passed  {len(bad):3} failed  "
                  f"{len(left_out):3} skipped")
    for line in skipped:
        print("skipped:", line)
    for line in failed + lost:
        print("failed:", line)
    print(f"{n_passed} passed, {len(failed) + len(lost)} failed, {len(skipped)} skipped")
    return 1 if failed or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
